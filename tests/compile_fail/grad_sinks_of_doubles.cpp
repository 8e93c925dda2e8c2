// wants: not a term of attention, or one of another scalar type
#include <heed/heed.hpp>

void wrong() {
  const heed::rows<float> x = heed::rows<float>::Ones(2, 4);
  const Eigen::VectorXf logits = Eigen::VectorXf::Ones(1);
  Eigen::VectorXd gradient(1);
  const auto forward = heed::attention_with_lse(x, x, x, {}, heed::sinks(logits));
  heed::attention_backward(x, x, x, forward.out, forward.lse, x, {}, heed::sinks(logits),
                           heed::grad_sinks(gradient));
}

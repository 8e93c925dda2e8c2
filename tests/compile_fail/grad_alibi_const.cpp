// wants: an output must not be const
#include <heed/heed.hpp>

void wrong() {
  const heed::rows<float> x = heed::rows<float>::Ones(2, 4);
  const Eigen::VectorXf slopes = Eigen::VectorXf::Ones(1);
  const auto forward = heed::attention_with_lse(x, x, x, {}, heed::alibi(slopes));
  heed::attention_backward(x, x, x, forward.out, forward.lse, x, {}, heed::alibi(slopes),
                           heed::grad_alibi(slopes));
}

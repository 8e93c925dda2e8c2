// wants: max_logits is a result of the forward call: leave it out
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  Eigen::VectorXf largest(1);
  const auto forward = heed::attention_with_lse(x, x, x);
  heed::attention_backward(x, x, x, forward.out, forward.lse, x, {}, heed::max_logits(largest));
}

// wants: lse must have the type of the scores: float for float, half and bfloat16; double for
// double
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  Eigen::MatrixXf out(2, 4);
  Eigen::VectorXd lse(2);
  heed::workspace memory;
  heed::attention_into(x, x, x, out, lse, {}, memory);
}

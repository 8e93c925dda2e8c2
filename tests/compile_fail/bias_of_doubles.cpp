// wants: not a term of attention, or one of another scalar type
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  const Eigen::MatrixXd bias = Eigen::MatrixXd::Zero(2, 2);
  heed::attention(x, x, x, {}, heed::bias(bias));
}

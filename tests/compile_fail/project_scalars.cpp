// wants: x and the weights must have one scalar type
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::project(x, Eigen::MatrixXd(4, 4));
}

// wants: a gradient must have the scalar type of what it is the gradient of
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(4, 4);
  heed::project_backward(x, x, Eigen::MatrixXd(4, 4));
}

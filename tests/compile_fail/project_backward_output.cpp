// wants: grad_x and grad_weight must have the scalar type of x
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(4, 4);
  Eigen::MatrixXf grad_x = x;
  Eigen::MatrixXd grad_weight(4, 4);
  heed::workspace memory;
  heed::project_backward_into(x, x, x, grad_x, grad_weight, {}, memory);
}

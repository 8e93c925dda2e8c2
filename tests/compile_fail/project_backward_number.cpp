// wants: a gradient must be an Eigen matrix, Map, block or expression
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(4, 4);
  heed::project_backward(x, x, 1.0f);
}

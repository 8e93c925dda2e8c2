// wants: keep takes a matrix of bool; a float mask is a bias
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::attention(x, x, x, {}, heed::keep(x));
}

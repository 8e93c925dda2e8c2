// wants: keep takes bools, or bytes that are not 0 where a query attends; a float mask is a bias
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::attention(x, x, x, {}, heed::keep(x));
}

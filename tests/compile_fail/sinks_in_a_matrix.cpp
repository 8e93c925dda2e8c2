// wants: this term takes an Eigen vector
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::attention(x, x, x, {}, heed::sinks(x));
}

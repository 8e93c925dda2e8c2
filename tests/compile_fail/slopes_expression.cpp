// wants: this term takes an Eigen vector of a number per query head, or a matrix batch x heads
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::attention(x, x, x, {}, heed::alibi(x + x));
}

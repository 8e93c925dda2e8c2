// wants: a list of indices in braces may end before it is read: make it a std::vector, std::array
// or Eigen vector
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::attention(x, x, x, {}, heed::key_lengths({2}));
}

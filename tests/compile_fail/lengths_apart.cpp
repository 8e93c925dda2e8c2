// wants: a list of indices is a std::vector, std::array or Eigen vector of std::int32_t or
// heed::size_type (std::ptrdiff_t)
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  const Eigen::Matrix<heed::size_type, 2, 2> lengths = Eigen::Matrix<heed::size_type, 2, 2>::Ones();
  heed::attention(x, x, x, {},
                  heed::key_lengths(lengths.row(0)));  // its elements do not lie side by side
}

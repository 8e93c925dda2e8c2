// wants: a list of indices is a std::vector, std::array or Eigen vector of std::int32_t or
// heed::size_type (std::ptrdiff_t)
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  const std::vector<double> lengths{2};
  heed::attention(x, x, x, {}, heed::key_lengths(lengths));
}

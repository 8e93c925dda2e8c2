// wants: a term may be given once
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  const auto near = [](heed::size_type, heed::size_type, heed::size_type i, heed::size_type j) {
    return i - j < 3;
  };
  const auto even = [](heed::size_type, heed::size_type, heed::size_type, heed::size_type j) {
    return j % 2 == 0;
  };
  heed::attention(x, x, x, {}, heed::mask_function(near), heed::mask_function(even));
}

// wants: a term may be given once
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  const auto near = [](heed::index, heed::index, heed::index i, heed::index j) { return i - j < 3; };
  const auto even = [](heed::index, heed::index, heed::index, heed::index j) { return j % 2 == 0; };
  heed::attention(x, x, x, {}, heed::mask_function(near), heed::mask_function(even));
}

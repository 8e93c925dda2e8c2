// wants: not a term of attention, or one of another scalar type
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::attention(x, x, x, {}, 0.5f);
}

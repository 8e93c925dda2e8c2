// wants: query, key and value must hold real numbers with fractions: cast whole numbers, split
// complex ones
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXcf x = Eigen::MatrixXcf::Ones(2, 4);
  heed::attention(x, x, x);
}

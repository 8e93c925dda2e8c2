// wants: query, key and value must be of a real, non-integer type: cast integers, split complex
// numbers
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXcf x = Eigen::MatrixXcf::Ones(2, 4);
  heed::attention(x, x, x);
}

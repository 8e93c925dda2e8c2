// wants: query, key and value must be Eigen matrices, Maps, blocks or expressions
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::attention(x, x, 3);
}

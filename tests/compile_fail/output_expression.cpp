// wants: an output must be an Eigen matrix, Map or block
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::workspace memory;
  heed::attention_into(x, x, x, x + x, {}, {}, memory);
}

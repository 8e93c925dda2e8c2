// wants: an output must not be const
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::workspace memory;
  heed::attention_into(x, x, x, x, {}, {}, memory);
}

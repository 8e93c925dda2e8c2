// wants: query, key, value and out must have one scalar type: cast the others to it
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::packed_multi_head_attention(x, Eigen::MatrixXd(2, 4), x, {2, 2});
}

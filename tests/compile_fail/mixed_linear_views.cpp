// wants: query, key, value and out must have one scalar type: cast the others to it
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  Eigen::MatrixXd out(2, 4);
  heed::workspace memory;
  heed::multi_head_linear_attention_into(heed::view(x), heed::view(x), heed::view(x),
                                         heed::writable_view(out), {}, memory);
}

// wants: query, key, value and out must have one scalar type: cast the others to it
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  const Eigen::MatrixXd y = Eigen::MatrixXd::Ones(2, 4);
  Eigen::MatrixXf out(2, 4);
  heed::workspace memory;
  heed::multi_head_attention_into(heed::view(x), heed::view(y), heed::view(x),
                                  heed::writable_view(out), {}, {}, memory);
}

// wants: lse must have the type of the scores: float for float, half and bfloat16; double for
// double
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  Eigen::MatrixXf out(2, 4);
  Eigen::MatrixXd wide(2, 4);
  heed::workspace memory;
  heed::multi_head_attention_into(heed::view(x), heed::view(x), heed::view(x),
                                  heed::writable_view(out), heed::writable_view(wide), {}, memory);
}

// wants: a call without lse takes {} in its place, not nullptr
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  Eigen::MatrixXf out(2, 4);
  heed::workspace memory;
  heed::multi_head_attention_into(heed::view(x), heed::view(x), heed::view(x),
                                  heed::writable_view(out), nullptr, {}, memory);
}

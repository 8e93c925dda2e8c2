// wants: an output must not be const
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::workspace memory;
  heed::multi_head_attention_into(heed::view(x), heed::view(x), heed::view(x), heed::view(x), {},
                                  {}, memory);
}

// wants: query, key, value and out must have one scalar type: cast the others to it
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  Eigen::MatrixXd wide(2, 4);
  heed::workspace memory;
  heed::multi_head_attention_into(heed::view(x), heed::view(x), heed::view(x),
                                  heed::writable_view(wide), {}, {}, memory);
}

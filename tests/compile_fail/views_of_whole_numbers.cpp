// wants: query, key and value must be of a real, non-integer type: cast integers, split complex
// numbers
#include <heed/heed.hpp>

void wrong() {
  Eigen::MatrixXi x = Eigen::MatrixXi::Ones(2, 4);
  heed::workspace memory;
  heed::multi_head_attention_into(heed::view(x), heed::view(x), heed::view(x),
                                  heed::writable_view(x), {}, {}, memory);
}

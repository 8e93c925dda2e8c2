// wants: query, key, value and out must have one scalar type: cast the others to it
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXd y = Eigen::MatrixXd::Ones(2, 4);
  Eigen::MatrixXf out(2, 4);
  heed::workspace memory;
  const heed::kv_cache<float> cache(1, 1, 4, 4);
  heed::cached_attention_into(heed::view(y), cache, heed::writable_view(out), {}, {}, memory);
}

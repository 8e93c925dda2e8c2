// wants: a cache can be saved where its numbers are float, double, Eigen::half,
// Eigen::bfloat16, std::int8_t, int8_block, int4_block, float8_e4m3 or float8_e5m2
#include <heed/heed.hpp>

heed::size_type wrong() {
  const heed::paged_kv_cache<long double> cache(1, 1, 1, 1, 1);
  return cache.saved_bytes();
}

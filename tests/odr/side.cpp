// Compiled twice with different flags and HEED_SIDE; both objects end in one program.
#include "side.hpp"

#include <heed/heed.hpp>

#define HEED_TEXT_OF(x) #x
#define HEED_TEXT(x) HEED_TEXT_OF(x)

namespace {
using input = Eigen::Map<const heed::rows<float>>;
using output = Eigen::Map<heed::rows<float>>;

void attend(const float* q, const float* k, const float* v, float* out, int n, int d) {
  output(out, n, d) = heed::attention(input(q, n, d), input(k, n, d), input(v, n, d));
}
void attend_into(const float* q, const float* k, const float* v, float* out, int n, int d) {
  heed::workspace memory;
  heed::attention_into(input(q, n, d), input(k, n, d), input(v, n, d), output(out, n, d), nullptr, {}, memory);
}
void refer(const float* q, const float* k, const float* v, float* out, int n, int d) {
  output(out, n, d) = heed::reference_attention(input(q, n, d), input(k, n, d), input(v, n, d));
}
}  // namespace

side HEED_SIDE() { return {attend, attend_into, refer, HEED_TEXT(HEED_ABI)}; }

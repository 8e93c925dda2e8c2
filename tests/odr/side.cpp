// Compiled with different flags and HEED_UNIT; all objects end in one program.
#include "side.hpp"

#include <heed/heed.hpp>

#include <cstring>

#define HEED_TEXT_OF(x) #x
#define HEED_TEXT(x) HEED_TEXT_OF(x)

namespace {
using input = Eigen::Map<const heed::rows<float>>;
using output = Eigen::Map<heed::rows<float>>;

void attend(const float* q, const float* k, const float* v, float* out, int n, int d) {
  const heed::rows<float> result = heed::attention(input(q, n, d), input(k, n, d), input(v, n, d));
  std::memcpy(out, result.data(), sizeof(float) * static_cast<std::size_t>(result.size()));
}
void attend_into(const float* q, const float* k, const float* v, float* out, int n, int d) {
  heed::workspace memory;
  heed::attention_into(input(q, n, d), input(k, n, d), input(v, n, d), output(out, n, d), {}, {},
                       memory);
}
void refer(const float* q, const float* k, const float* v, float* out, int n, int d) {
  output(out, n, d) = heed::reference_attention(input(q, n, d), input(k, n, d), input(v, n, d));
}
void use_baseline(bool on) { heed::set_target(on ? heed::isa::baseline : heed::isa::automatic); }
bool uses_baseline() { return heed::detail::resolve(heed::isa::automatic) == heed::isa::baseline; }
void set_handler(void (*handler)(const char*)) { heed::set_failure_handler(handler); }
void attend_wrongly() {
  heed::attention(heed::rows<float>(2, 4), heed::rows<float>(2, 3), heed::rows<float>(2, 4));
}
}  // namespace

const side HEED_SIDE_OF(HEED_UNIT) = {
    HEED_TEXT(HEED_UNIT), HEED_TEXT(HEED_ABI), attend,      attend_into,   refer,
    use_baseline,         uses_baseline,       set_handler, attend_wrongly};

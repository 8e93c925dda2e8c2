// heed behind one C function, so that compare.py can call it as it calls the peers.
#include <heed/multi_head.hpp>

#include <cstdio>
#include <exception>

namespace {

template <typename Scalar>
void forward(const void* query, const void* key, const void* value, void* out, long heads, long kv_heads, long n_q, long n_kv, long d,
             int causal, int threads) {
  static heed::workspace memory;  // as a program would keep it between calls
  heed::attention_options options;
  options.causal = causal ? heed::causal::bottom_right : heed::causal::none;
  options.threads = threads;
  const auto view = [&](const void* data, long h, long n) { return heed::bhnd(static_cast<const Scalar*>(data), 1, h, n, d); };
  heed::multi_head_attention_into(view(query, heads, n_q), view(key, kv_heads, n_kv), view(value, kv_heads, n_kv),
                                  heed::bhnd(static_cast<Scalar*>(out), 1, heads, n_q, d), {}, options, memory);
}

}  // namespace

/// query and out [1, heads, n_q, d], key and value [1, kv_heads, n_kv, d], float or (bfloat16 != 0) bfloat16. Returns 0, or 1 after an
/// error.
extern "C" int heed_forward(const void* query, const void* key, const void* value, void* out, long heads, long kv_heads, long n_q,
                            long n_kv, long d, int causal, int threads, int bfloat16) {
  try {
    const auto run = bfloat16 ? forward<Eigen::bfloat16> : forward<float>;
    run(query, key, value, out, heads, kv_heads, n_q, n_kv, d, causal, threads);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

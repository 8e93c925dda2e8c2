// heed behind one C function, so that compare.py can call it as it calls the peers.
#include <heed/multi_head.hpp>

#include <cstdio>
#include <exception>

namespace {

template <typename Scalar>
void forward(const void* query, const void* key, const void* value, void* out, long heads,
             long kv_heads, long n_q, long n_kv, long d, int causal, int threads,
             int side_by_side) {
  static heed::workspace memory;  // as a program would keep it between calls
  heed::attention_options options;
  options.causal = causal ? heed::causal::bottom_right : heed::causal::none;
  options.execution.threads = threads;
  const auto view = [&](auto* data, long h, long n) {
    return side_by_side ? heed::bnhd(data, 1, n, h, d) : heed::bhnd(data, 1, h, n, d);
  };
  const auto input = [&](const void* data, long h, long n) {
    return view(static_cast<const Scalar*>(data), h, n);
  };
  heed::multi_head_attention_into(input(query, heads, n_q), input(key, kv_heads, n_kv),
                                  input(value, kv_heads, n_kv),
                                  view(static_cast<Scalar*>(out), heads, n_q), {}, options, memory);
}

}  // namespace

/// query and out [1, heads, n_q, d], key and value [1, kv_heads, n_kv, d], float or (bfloat16 != 0)
/// bfloat16, dense or (side_by_side
/// != 0) in memory as [1, n, heads, d]. Returns 0, or 1 after an error.
extern "C" int heed_forward(const void* query, const void* key, const void* value, void* out,
                            long heads, long kv_heads, long n_q, long n_kv, long d, int causal,
                            int threads, int bfloat16, int side_by_side) {
  try {
    const auto run = bfloat16 ? forward<Eigen::bfloat16> : forward<float>;
    run(query, key, value, out, heads, kv_heads, n_q, n_kv, d, causal, threads, side_by_side);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

// heed behind one C function, so that compare.py can call it as it calls the peers.
#include <heed/backward.hpp>
#include <heed/multi_head.hpp>

#include <cstdio>
#include <exception>

namespace {

heed::workspace memory;  // as a program would keep it between calls

struct shape {
  long heads, kv_heads, n_q, n_kv, d;
  int causal, threads, side_by_side;

  heed::attention_options options() const {
    heed::attention_options o;
    o.causal = causal ? heed::causal::bottom_right : heed::causal::none;
    o.execution.threads = threads;
    return o;
  }
  template <typename Scalar>
  auto view(void* data, long h, long n, long width) const {
    auto* const numbers = static_cast<Scalar*>(data);
    return side_by_side ? heed::bnhd(numbers, 1, n, h, width) : heed::bhnd(numbers, 1, h, n, width);
  }
  template <typename Scalar>
  auto queries(void* data) const {
    return view<Scalar>(data, heads, n_q, d);
  }
  template <typename Scalar>
  auto keys(void* data) const {
    return view<Scalar>(data, kv_heads, n_kv, d);
  }
};

template <typename Scalar>
void forward(const shape& s, void* query, void* key, void* value, void* out) {
  heed::multi_head_attention_into(s.queries<Scalar>(query), s.keys<Scalar>(key),
                                  s.keys<Scalar>(value), s.queries<Scalar>(out), {}, s.options(),
                                  memory);
}
template <typename Scalar>
void forward_backward(const shape& s, void* query, void* key, void* value, void* grad_out,
                      void* out, void* lse, void* grad_query, void* grad_key, void* grad_value) {
  const auto q = s.queries<Scalar>(query), o = s.queries<Scalar>(out);
  const auto k = s.keys<Scalar>(key), v = s.keys<Scalar>(value);
  const auto sums = s.view<float>(lse, s.heads, s.n_q, 1);
  heed::multi_head_attention_into(q, k, v, o, sums, s.options(), memory);
  heed::multi_head_attention_backward_into(q, k, v, o, sums, s.queries<Scalar>(grad_out),
                                           s.queries<Scalar>(grad_query), s.keys<Scalar>(grad_key),
                                           s.keys<Scalar>(grad_value), s.options(), memory);
}

/// 0, or 1 after an error.
template <typename Call>
int status_of(const Call& call) {
  try {
    call();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace

/// query and out [1, heads, n_q, d], key and value [1, kv_heads, n_kv, d], float or (bfloat16 != 0)
/// bfloat16, dense or (side_by_side != 0) in memory as [1, n, heads, d].
extern "C" int heed_forward(void* query, void* key, void* value, void* out, long heads,
                            long kv_heads, long n_q, long n_kv, long d, int causal, int threads,
                            int bfloat16, int side_by_side) {
  const shape s{heads, kv_heads, n_q, n_kv, d, causal, threads, side_by_side};
  const auto run = bfloat16 ? forward<Eigen::bfloat16> : forward<float>;
  return status_of([&] { run(s, query, key, value, out); });
}

/// The same with the gradients, from grad_out; lse has heads * n_q floats.
extern "C" int heed_forward_backward(void* query, void* key, void* value, void* grad_out, void* out,
                                     void* lse, void* grad_query, void* grad_key, void* grad_value,
                                     long heads, long kv_heads, long n_q, long n_kv, long d,
                                     int causal, int threads, int bfloat16, int side_by_side) {
  const shape s{heads, kv_heads, n_q, n_kv, d, causal, threads, side_by_side};
  const auto run = bfloat16 ? forward_backward<Eigen::bfloat16> : forward_backward<float>;
  return status_of(
      [&] { run(s, query, key, value, grad_out, out, lse, grad_query, grad_key, grad_value); });
}

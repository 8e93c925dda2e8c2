#pragma once

#include <heed/detail/check.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

// What attention and linear attention ask alike of the sizes of their arguments. `length` is the
// word of each for the tokens of an axis.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Starts of parts that follow each other, 0 = starts[0] <= starts[1] <= ...; the last is where the
/// last part ends. Returns the number of parts.
inline size_type check_ascending(const char* function, const char* what, const index_list& starts) {
  check_list(function, what, starts);
  if (starts.size < 1)
    fail_with("heed::", function, ": ", what,
              " must have one more entry than there are sequences or blocks, but has 0");
  if (starts[0] != 0)
    fail_with("heed::", function, ": ", what, " must begin with 0, but begins with ", starts[0]);
  for (size_type b = 1; b < starts.size; ++b)
    if (starts[b] < starts[b - 1])
      fail_with("heed::", function, ": ", what, " must not decrease, but entry ", b, " is ",
                starts[b], " after ", starts[b - 1]);
  return starts.size - 1;
}

/// All but the heads.
template <typename Query, typename Key, typename Value>
void check_tokens_fit(const char* function, const Query& query, const Key& key, const Value& value,
                      const char* length) {
  check_axis(function, "key", "head_dim", key.cols, "query", query.cols);
  check_axis(function, "value", length, value.rows, "key", key.rows);
  check_axis(function, "key", "batch", key.batch, "query", query.batch);
  check_axis(function, "value", "batch", value.batch, "key", key.batch);
}
template <typename Query, typename Key, typename Value>
void check_query_key_value(const char* function, const Query& query, const Key& key,
                           const Value& value, const char* length) {
  check_tokens_fit(function, query, key, value, length);
  check_axis(function, "value", "num_kv_heads", value.heads, "key", key.heads);
  if (key.heads == 0 ? query.heads != 0 : query.heads % key.heads != 0)
    fail_with("heed::", function, ": query: num_heads ", query.heads,
              " is not a multiple of num_kv_heads ", key.heads);
}

/// `what` must have a row for each of the query.
template <typename Scalar, typename Query>
void check_rows(const char* function, const char* what, const tensor_view<Scalar>& view,
                const Query& query, const char* length) {
  check_view(function, what, view);
  check_axis(function, what, "batch", view.batch, "query", query.batch);
  check_axis(function, what, "num_heads", view.heads, "query", query.heads);
  check_axis(function, what, length, view.rows, "query", query.rows);
}

/// The same for one number a row.
template <typename Scalar, typename Query>
void check_row_numbers(const char* function, const char* what, const tensor_view<Scalar>& view,
                       const Query& query, const char* length) {
  check_rows(function, what, view, query, length);
  if (view.cols != 1)
    fail_with("heed::", function, ": ", what, ": columns ", view.cols,
              " does not match one number per row: 1");
}

/// The same for rows of an output, or of its gradient.
template <typename Scalar, typename Query, typename Value>
void check_out(const char* function, const char* what, const tensor_view<Scalar>& out,
               const Query& query, const Value& value, const char* length) {
  check_rows(function, what, out, query, length);
  check_axis(function, what, "head_dim", out.cols, "value", value.cols);
}

/// What is as large as another argument.
template <typename Scalar, typename Other>
void check_same_sizes(const char* function, const char* what, const tensor_view<Scalar>& view,
                      const char* whose, const tensor_view<Other>& of) {
  check_view(function, what, view);
  check_axis(function, what, "batch", view.batch, whose, of.batch);
  check_axis(function, what, "num_heads", view.heads, whose, of.heads);
  check_axis(function, what, "rows", view.rows, whose, of.rows);
  check_axis(function, what, "columns", view.cols, whose, of.cols);
}

/// Views with strides of 0 can be of any size: the bytes that a plan sets aside for a row of each
/// worker must be a number. (For rows that are in memory they are, by far.)
inline void check_row_scratch(const char* function, size_type d_k, size_type d_v,
                              size_type workers) {
  constexpr size_type a_head_dim = size_type{1} << 16;  // bytes at most, of a worker
  product(function, "scratch for query's head_dim, in bytes", {d_k, a_head_dim, workers});
  product(function, "scratch for value's head_dim, in bytes", {d_v, a_head_dim, workers});
}

}  // namespace detail
HEED_NAMESPACE_END

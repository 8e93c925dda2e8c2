#pragma once

#include <heed/carry.hpp>
#include <heed/detail/check.hpp>
#include <heed/detail/given.hpp>
#include <heed/detail/linear_params.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/starts.hpp>
#include <heed/executor.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>
#include <heed/workspace.hpp>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// The sequences of a call: its batch entries, or those that one entry has one after the other.
class sequences {
 public:
  sequences() = default;
  /// Those of `tokens`, an argument with a row for each token; checked.
  template <typename Scalar>
  sequences(const char* function, const char* what, const tensor_view<Scalar>& tokens,
            const std::optional<index_list>& starts)
      : batch_(tokens.batch), length_(tokens.rows), starts_(starts) {
    if (!starts) return;
    check_equal(function, (std::string(what) + ": batch").c_str(), tokens.batch,
                "the packed batch of", size_type{1});
    batch_ = check_starts(function, "sequence_starts", *starts, tokens.rows);
  }

  size_type count() const { return batch_; }
  size_type length(size_type s) const {
    return starts_ ? (*starts_)[s + 1] - (*starts_)[s] : length_;
  }
  /// What sequence s has of a view; one with a single entry, or row, has it for all.
  template <typename Scalar>
  tensor_view<Scalar> of(tensor_view<Scalar> view, size_type s) const {
    if (!starts_ && view.batch > 1) view.data += s * view.batch_stride;
    view.batch = 1;
    if (starts_ && view.rows > 1)
      view.data += (*starts_)[s] * view.row_stride, view.rows = length(s);
    return view;
  }

 private:
  size_type batch_ = 0, length_ = 0;
  std::optional<index_list> starts_;
};

/// Runs work(batch entry, head) for every head, shared out among the call's threads.
template <typename Work>
void for_each_head(size_type batch, size_type heads, const execution& how, const Work& work) {
  for_each_task(batch * heads, workers_of(how), how.executor,
                [&](size_type task, int) { work(task / heads, task % heads); });
}

/// Zeros of any scalar type in memory that somebody else owns.
template <typename Acc>
class zeros {
 public:
  zeros(void* memory, size_type count) : data_(static_cast<Acc*>(memory)), count_(count) {
    std::uninitialized_fill_n(data_, count_, Acc(0));
  }
  ~zeros() { std::destroy_n(data_, count_); }
  zeros(const zeros&) = delete;
  Acc* data() const { return data_; }

 private:
  Acc* data_;
  size_type count_;
};

/// Bytes of the workspace for a call whose workers have `count` numbers each.
template <typename Acc>
size_type numbers_bytes(size_type batch, size_type heads, const execution& how, size_type count) {
  return workers_of(how, batch * heads) * padded_bytes(count * size_type{sizeof(Acc)});
}

/// Runs work(batch entry, head, numbers), where the numbers are `count` zeros, for every head.
template <typename Acc, typename Work>
void for_each_head(size_type batch, size_type heads, const execution& how, size_type count,
                   workspace& memory, const Work& work) {
  char* const scratch =
      static_cast<char*>(memory.reserve(numbers_bytes<Acc>(batch, heads, how, count)));
  for_each_task(batch * heads, workers_of(how), how.executor, [&](size_type task, int worker) {
    const zeros<Acc> numbers(scratch + worker * padded_bytes(count * size_type{sizeof(Acc)}),
                             count);
    work(task / heads, task % heads, numbers.data());
  });
}

/// Batch, heads and length of one argument must be those of the argument that the function goes by.
template <typename Given, typename Wanted>
void check_sequence(const char* function, const char* what, const tensor_view<Given>& given,
                    const char* whose, const tensor_view<Wanted>& wanted) {
  check_view(function, what, given);
  check_axis(function, what, "batch", given.batch, whose, wanted.batch);
  check_axis(function, what, "heads", given.heads, whose, wanted.heads);
  check_axis(function, what, "length", given.rows, whose, wanted.rows);
}

/// The sizes of a carried state, if there is one.
template <typename Acc>
void check_carry(const char* function, const std::optional<tensor_view<Acc>>& carry,
                 size_type batch, size_type heads, size_type state_rows, const char* rows_name,
                 size_type state_cols, const char* cols_name) {
  if (!carry) return;
  check_view(function, "carry", *carry);
  check_equal(function, "carry: batch", carry->batch, "the call's batch", batch);
  check_equal(function, "carry: heads", carry->heads, "the call's heads", heads);
  check_equal(function, "carry: rows", carry->rows, rows_name, state_rows);
  check_equal(function, "carry: columns", carry->cols, cols_name, state_cols);
}

/// An entry of a state that decays: 0 below least_state, for float and double, recognised by its
/// bits as in number.hpp.
inline float settled(float x) {
  return bits_of(x) << 1 < bits_of(least_state<float>) << 1 ? 0.0f : x;
}
inline double settled(double x) {
  return bits_of(x) << 1 < bits_of(least_state<double>) << 1 ? 0.0 : x;
}
template <typename Acc>
Acc settled(const Acc& x) {
  return x;
}

/// A state as a dense matrix to work on, in `numbers` that are zeros: loaded from the caller's, if
/// there is one, and stored back at the end.
template <typename Acc>
class loaded_state {
 public:
  loaded_state(Acc* numbers, const std::optional<tensor_view<Acc>>& carry, size_type b, size_type h,
               size_type state_rows, size_type state_cols)
      : value(numbers, state_rows, state_cols) {
    if (!carry) return;
    home_ = carry->head(b, h, 0, carry->rows);
    for (size_type i = 0; i < value.rows(); ++i)
      for (size_type c = 0; c < value.cols(); ++c) value(i, c) = home_(i, c);
  }
  loaded_state(const loaded_state&) = delete;
  void store() const {
    if (!home_.data) return;
    for (size_type i = 0; i < value.rows(); ++i)
      for (size_type c = 0; c < value.cols(); ++c) home_(i, c) = settled(value(i, c));
  }
  /// After token t.
  void settle(size_type t) {
    if (t % tokens_to_settle != tokens_to_settle - 1) return;
    for (size_type i = 0; i < value.size(); ++i) value.data()[i] = settled(value.data()[i]);
  }

  Eigen::Map<rows<Acc>> value;

 private:
  matrix_view<Acc> home_;
};

/// One token's row in the type of the state.
template <typename Acc>
using state_row = Eigen::Array<Acc, 1, Eigen::Dynamic>;

template <typename Acc, typename Scalar>
void load_row(const tensor_view<Scalar>& from, size_type b, size_type h, size_type t,
              Eigen::Map<state_row<Acc>>& to) {
  for (size_type c = 0; c < from.cols; ++c) to(c) = Acc(from(b, h, t, c));
}

template <typename Acc>
Acc silu(const Acc& x) {
  using std::exp;
  return x / (Acc(1) + exp(-x));
}

/// log(1 + exp(x)) without overflow.
template <typename Acc>
Acc softplus(const Acc& x) {
  using std::exp;
  using std::log;
  const Acc tail = exp(x > Acc(0) ? Acc(-x) : x);
  Acc bend;
  if constexpr (std::is_floating_point<Acc>::value) {
    bend = std::log1p(tail);
  } else {
    bend = log(Acc(Acc(1) + tail));
  }
  return x > Acc(0) ? Acc(x + bend) : bend;
}

}  // namespace detail
HEED_NAMESPACE_END

#pragma once

#include <heed/executor.hpp>
#include <heed/mpi_group.hpp>
#include <heed/tensor.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <thread>
#include <type_traits>

// Messages of rows, and how they move while kernels run.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Rows of one head as an MPI type: an int counts bytes of a row, rows and heads, and none of their
/// products.
class rows_type {
 public:
  rows_type(size_type rows, size_type row_bytes) {
    MPI_Datatype row = MPI_DATATYPE_NULL;
    check_mpi("MPI_Type_contiguous",
              MPI_Type_contiguous(static_cast<int>(row_bytes), MPI_BYTE, &row));
    const int error = MPI_Type_contiguous(static_cast<int>(rows), row, &type_);
    MPI_Type_free(&row);
    check_mpi("MPI_Type_contiguous", error);
    const int commit = MPI_Type_commit(&type_);
    if (commit != MPI_SUCCESS) MPI_Type_free(&type_);
    check_mpi("MPI_Type_commit", commit);
  }
  ~rows_type() { MPI_Type_free(&type_); }
  rows_type(const rows_type&) = delete;
  rows_type& operator=(const rows_type&) = delete;
  operator MPI_Datatype() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

/// Whether a tensor is one piece of memory in the order [batch, heads, rows, cols].
template <typename Scalar>
bool is_dense(const tensor_view<Scalar>& x) {
  const auto steps = [](size_type extent, size_type stride, size_type dense) {
    return extent <= 1 || stride == dense;
  };
  return steps(x.cols, x.col_stride, 1) && steps(x.rows, x.row_stride, x.cols) &&
         steps(x.heads, x.head_stride, x.rows * x.cols) &&
         steps(x.batch, x.batch_stride, x.heads * x.rows * x.cols);
}
template <typename Scalar>
tensor_view<Scalar> rows_of(tensor_view<Scalar> x, size_type first, size_type count) {
  x.data += x.data ? first * x.row_stride : 0;
  x.rows = count;
  return x;
}
template <typename Scalar>
tensor_view<Scalar> heads_of(tensor_view<Scalar> x, size_type first, size_type count) {
  x.data += x.data ? first * x.head_stride : 0;
  x.heads = count;
  return x;
}
/// Copies, or converts to another type, every number of a tensor.
template <typename From, typename To>
void copy_numbers(const tensor_view<From>& from, const tensor_view<To>& to) {
  const bool runs = std::is_same<std::remove_const_t<From>, To>::value && from.col_stride == 1 &&
                    to.col_stride == 1 && from.cols > 0;
  for (size_type b = 0; b < from.batch; ++b)
    for (size_type h = 0; h < from.heads; ++h)
      for (size_type i = 0; i < from.rows; ++i)
        if (runs)
          std::memcpy(static_cast<void*>(&to(b, h, i, 0)), &from(b, h, i, 0),
                      static_cast<std::size_t>(from.cols) * sizeof(To));
        else
          for (size_type c = 0; c < from.cols; ++c)
            to(b, h, i, c) = static_cast<To>(from(b, h, i, c));
}

/// What a message is for; between two ranks there is one of each at a time.
enum class message_tag : int { key, value, grad_key, grad_value, tokens };

/// The messages that are on their way.
class messages {
 public:
  explicit messages(process_group& group) : group_(group) {}
  /// After an error: nothing more comes into memory that is about to go.
  ~messages() {
    for (int i = 0; i < count_; ++i)
      if (requests_[static_cast<std::size_t>(i)] != MPI_REQUEST_NULL) {
        MPI_Cancel(&requests_[static_cast<std::size_t>(i)]);
        MPI_Request_free(&requests_[static_cast<std::size_t>(i)]);
      }
  }
  messages(const messages&) = delete;
  messages& operator=(const messages&) = delete;

  template <typename Scalar>
  void send(const tensor_view<Scalar>& dense, int to, message_tag tag) {
    if (is_empty(dense)) return;
    const rows_type type(dense.rows, dense.cols * size_type{sizeof(Scalar)});
    check_mpi("MPI_Isend", MPI_Isend(dense.data, heads_in(dense), type, to, static_cast<int>(tag),
                                     group_.comm(), next()));
    ++count_;
    if (group_times* const times = group_.times())
      times->bytes_sent +=
          dense.batch * dense.heads * dense.rows * dense.cols * size_type{sizeof(Scalar)};
  }
  template <typename Scalar>
  void receive(const tensor_view<Scalar>& dense, int from, message_tag tag) {
    if (is_empty(dense)) return;
    const rows_type type(dense.rows, dense.cols * size_type{sizeof(Scalar)});
    check_mpi("MPI_Irecv", MPI_Irecv(dense.data, heads_in(dense), type, from, static_cast<int>(tag),
                                     group_.comm(), next()));
    ++count_;
  }
  /// Lets them move. What fails is reported by wait.
  void look() noexcept {
    if (count_ == 0 || error_ != MPI_SUCCESS) return;
    group_times* const times = group_.times();
    const double begin = times ? MPI_Wtime() : 0;
    int done = 0;
    error_ = MPI_Testall(count_, requests_.data(), &done, MPI_STATUSES_IGNORE);
    if (done) count_ = 0;
    if (times) times->looking += MPI_Wtime() - begin;
  }
  /// Returns when all have come and gone.
  void wait() {
    check_mpi("MPI_Testall", error_);
    if (count_ == 0) return;
    group_times* const times = group_.times();
    const double begin = times ? MPI_Wtime() : 0;
    check_mpi("MPI_Waitall", MPI_Waitall(count_, requests_.data(), MPI_STATUSES_IGNORE));
    count_ = 0;
    if (times) times->waiting += MPI_Wtime() - begin;
  }

 private:
  template <typename Scalar>
  static bool is_empty(const tensor_view<Scalar>& x) {
    return x.batch == 0 || x.heads == 0 || x.rows == 0 || x.cols == 0;
  }
  template <typename Scalar>
  static int heads_in(const tensor_view<Scalar>& x) {
    return static_cast<int>(x.batch * x.heads);
  }
  MPI_Request* next() { return &requests_[static_cast<std::size_t>(count_)]; }

  process_group& group_;
  std::array<MPI_Request, 8> requests_{};
  int count_ = 0, error_ = MPI_SUCCESS;
};

/// Runs a call where the caller wants it, and looks at messages after each task of the thread that
/// made the call. One thread is given two workers' tasks, one after the other: a call of one task
/// would leave no time to look.
class looking_executor : public executor {
 public:
  looking_executor(const execution& how, messages& under_way)
      : how_(how), messages_(under_way), caller_(std::this_thread::get_id()) {}
  int workers() const override { return (std::max)(workers_of(how_), 2); }
  void run(int workers, work_function work, void* context) override {
    if (workers_of(how_) == 1) {
      for (int w = 0; w < workers; ++w) work(context, w);
    } else if (how_.executor) {
      how_.executor->run(workers, work, context);
    } else {
      thread_executor(workers).run(workers, work, context);
    }
  }
  void after_task(int worker) override {
    if (how_.executor) how_.executor->after_task(worker);
    if (std::this_thread::get_id() == caller_) messages_.look();
  }

 private:
  const execution how_;
  messages& messages_;
  const std::thread::id caller_;
};

/// Adds the time until its end to one of the times of a group, less what was spent looking.
class computing_time {
 public:
  explicit computing_time(const process_group& group) : times_(group.times()) {
    if (times_) begin_ = MPI_Wtime() - times_->looking;
  }
  ~computing_time() {
    if (times_) times_->computing += MPI_Wtime() - times_->looking - begin_;
  }
  computing_time(const computing_time&) = delete;
  computing_time& operator=(const computing_time&) = delete;

 private:
  group_times* const times_;
  double begin_ = 0;
};

}  // namespace detail
HEED_NAMESPACE_END

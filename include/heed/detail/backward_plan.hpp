#pragma once

#include <heed/detail/run_backward.hpp>
#include <heed/executor.hpp>
#include <heed/workspace.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <thread>

// How a backward call runs. A task is a block of keys, of one key/value head of one sequence. dQ is
// the only sum that tasks share: blocks of keys add to a block of queries in ascending order, each
// waits for its turn, so no bit depends on the threads. Tasks begin in ascending order too: whoever
// waits waits for a task that has begun, and the first of those for nobody.

HEED_NAMESPACE_BEGIN
namespace detail {

template <typename In, typename Out, typename Acc>
backward_kernel<In, Out, Acc> select_backward(isa target) {
  return with_kernels(target,
                      [](auto set) { return decltype(set)::template gradient<In, Out, Acc>(); });
}

/// How a call runs, and where in its workspace it keeps what.
template <typename Scalar>
struct backward_plan : scratch_layout {
  using Acc = accumulator_t<Scalar>;
  static constexpr size_type queries = backward_queries<kernel_scalar<Scalar>>;

  size_type rows = 0, blocks = 0;            // of queries, in all heads
  size_type head_rows = 0, head_blocks = 0;  // of one head of all ragged sequences
  size_type key_blocks = 0;                  // of the longest sequence
  backward_needs needs;
  bool own_sums = false;     // of dQ, which are not those of the output
  bool shares_bias = false;  // heads or sequences add to the same gradient of a bias
  size_type task_bytes = 0;
  int workers = 1;
  size_type shift = 0, delta = 0, sums = 0, turns = 0, grad_query = 0, tasks = 0;  // offsets

  /// The first block of queries of sequence b, among those of a head: at most so many are before.
  static size_type first_block(const problem<Scalar>& p, size_type b) {
    return p.ragged() ? p.first_query(b) / queries + b : 0;
  }

  template <typename Out>
  explicit backward_plan(const backward_problem<Scalar, Out>& p) {
    const problem<Scalar>& forward = p.forward;
    const auto& terms = forward.terms;
    const size_type heads = forward.query.batch * forward.num_heads(), d_k = forward.query.cols,
                    d_v = forward.value.cols;
    head_rows = forward.query.rows;
    head_blocks = forward.ragged() ? head_rows / queries + forward.batch()
                                   : (head_rows + queries - 1) / queries;
    rows = heads * head_rows;
    blocks = heads * head_blocks;
    size_type longest = 0;
    for (size_type b = 0; b < forward.batch(); ++b) longest = (std::max)(longest, forward.n_kv(b));
    key_blocks = (longest + backward_keys - 1) / backward_keys;

    needs.slopes = terms.score_function.run != nullptr;
    needs.scores = forward.options.softcap > 0 || needs.slopes || terms.logit_scales;
    needs.dropped = terms.weight_dropout.run != nullptr;
    needs.copies = !std::is_same<Acc, Scalar>::value || forward.query.col_stride != 1 ||
                   p.grad_out.col_stride != 1;
    own_sums = !std::is_same<Acc, Scalar>::value || p.grad_query.col_stride != 1;
    if (p.terms.grad_bias) {
      const auto& view = p.terms.grad_bias->view;
      shares_bias = view.batch < forward.query.batch || view.heads < forward.num_heads();
    }
    const size_type all =
        shares_bias ? key_blocks : key_blocks * forward.batch() * forward.key.heads;
    workers = workers_of(forward.options.execution, (std::max)(all, blocks));
    if (p.terms.grad_bias && p.terms.grad_bias->view.cols < forward.key.rows)
      workers = 1;  // blocks of keys add to the same numbers

    shift = take<Acc>(rows);
    delta = take<Acc>(rows);
    sums = take<backward_sums>(blocks);
    turns = take<std::atomic<size_type>>(blocks);
    grad_query = take<Acc>(own_sums ? rows * padded_row(d_k) : 0);
    task_bytes = backward_layout<Acc>(queries, d_k, d_v, needs).bytes();
    tasks = take<unsigned char>(task_bytes * workers);
  }
};

/// Rows from `first` on, with their elements as a kernel sees them.
template <typename To, typename From>
strided_rows<To> kernel_view(const matrix_view<From>& rows, size_type first = 0) {
  return {reinterpret_cast<To*>(rows.data) + first * rows.row_stride, rows.row_stride,
          rows.col_stride};
}

/// Runs a checked backward call on the kernels, as planned.
template <typename Scalar, typename Out>
class backward_run {
  using In = kernel_scalar<Scalar>;
  using Acc = accumulator_t<Scalar>;
  using KernelOut = kernel_scalar<Out>;
  using plan_type = backward_plan<Scalar>;
  using turn = std::atomic<size_type>;
  static constexpr size_type queries = plan_type::queries;

  const backward_problem<Scalar, Out>& p;
  const plan_type& plan;
  void* const memory;
  const backward_kernel<In, KernelOut, Acc> kernel;

  template <typename Element>
  Element* at(size_type offset) const {
    return scratch_at<Element>(memory, offset);
  }
  /// The number of head h of sequence b among all rows, or blocks, of queries.
  size_type first_row(size_type b, size_type h) const {
    return (p.forward.query_entry(b) * p.forward.num_heads() + h) * plan.head_rows +
           p.forward.first_query(b);
  }
  size_type first_block(size_type b, size_type h) const {
    return (p.forward.query_entry(b) * p.forward.num_heads() + h) * plan.head_blocks +
           plan_type::first_block(p.forward, b);
  }
  strided_rows<Acc> query_sums(size_type b, size_type h) const {
    if (!plan.own_sums) return kernel_view<Acc>(p.query_rows(p.grad_query, b, h));
    const size_type row = padded_row(p.forward.query.cols);
    return {at<Acc>(plan.grad_query) + first_row(b, h) * row, row, 1};
  }

  backward_head<In, Acc> head(size_type b, size_type h) const {
    const head_problem<Scalar> of = p.forward.head(b, h);
    backward_head<In, Acc> one;
    one.query = kernel_view<const In>(of.query);
    one.grad_out = kernel_view<const In>(p.query_rows(p.grad_out, b, h));
    one.grad_query = query_sums(b, h);
    one.shift = at<Acc>(plan.shift) + first_row(b, h);
    one.delta = at<Acc>(plan.delta) + first_row(b, h);
    one.score = of.score;
    one.score.natural = true;
    one.keeps_scores = plan.needs.scores;
    if (p.forward.terms.logit_scales) {
      one.has_logit_scale = true;
      one.logit_scale = p.forward.terms.logit_scales->values[h];
    }
    if (p.terms.grad_bias)
      one.grad_bias = kernel_view<Acc>(p.forward.from_first_key(p.terms.grad_bias->view, b, h));
    if (p.terms.grad_alibi || p.terms.grad_logit_scales)
      one.sums = at<backward_sums>(plan.sums) + first_block(b, h);
    return one;
  }

  /// What a block of queries has to know of its rows, and zeros where it will add.
  void prepare(size_type b, size_type h, size_type block) const {
    const size_type i0 = block * queries, n_q = p.forward.n_q(b);
    if (i0 >= n_q) return;
    const size_type count = (std::min)(queries, n_q - i0), first = first_row(b, h) + i0;
    row_statistics<In, KernelOut, Acc> rows;
    rows.grad_out = kernel_view<const In>(p.query_rows(p.grad_out, b, h), i0);
    rows.out = kernel_view<const KernelOut>(p.query_rows(p.out, b, h), i0);
    rows.lse = kernel_view<const Acc>(p.query_rows(p.lse, b, h), i0);
    if (p.terms.grad_lse)
      rows.grad_lse = kernel_view<const Acc>(p.query_rows(p.terms.grad_lse->view, b, h), i0);
    rows.rows = count;
    rows.d_v = p.forward.value.cols;
    rows.shift_to = at<Acc>(plan.shift) + first;
    rows.delta_to = at<Acc>(plan.delta) + first;
    kernel.measure_rows(rows);

    const strided_rows<Acc> to = query_sums(b, h);
    for (size_type i = i0; i < i0 + count; ++i) std::fill_n(to.at(i), p.forward.query.cols, Acc(0));
    const index_range keys = p.forward.band(b).keys_of(i0, i0 + count, p.forward.n_kv(b));
    new (at<turn>(plan.turns) + first_block(b, h) + block) turn(keys.begin / backward_keys);
    at<backward_sums>(plan.sums)[first_block(b, h) + block] = {};
  }

  /// A block of keys of head g, with all queries that see it.
  void run_keys(size_type b, size_type g, size_type block, int worker) const {
    const problem<Scalar>& forward = p.forward;
    const size_type n_kv = forward.n_kv(b), j0 = block * backward_keys, n_q = forward.n_q(b);
    if (j0 >= n_kv) return;
    backward_task<In, Acc> task;
    const size_type first = g * forward.group();
    const head_problem<Scalar> of = forward.head(b, first);
    task.key = {reinterpret_cast<const In*>(of.key.data), of.key.row, of.key.col};
    task.value = {reinterpret_cast<const In*>(of.value.data), of.value.row, of.value.col};
    task.grad_key = kernel_view<In>(p.key_rows(p.grad_key, b, g));
    task.grad_value = kernel_view<In>(p.key_rows(p.grad_value, b, g));
    task.j0 = j0;
    task.keys = (std::min)(backward_keys, n_kv - j0);
    task.n_q = n_q;
    task.d_k = forward.query.cols;
    task.d_v = forward.value.cols;
    task.scale = Acc(forward.scale());
    task.needs = plan.needs;
    task.scratch = at<unsigned char>(plan.tasks) + plan.task_bytes * worker;

    const index_range rows = forward.band(b).queries_of(j0, j0 + task.keys, n_q);
    kernel.begin(task);
    for (size_type h = first; h < first + forward.group() && !rows.empty(); ++h) {
      const backward_head<In, Acc> one = head(b, h);
      turn* const turns = at<turn>(plan.turns) + first_block(b, h);
      for (size_type i = rows.begin / queries; i * queries < rows.end; ++i) {
        kernel.add_key_grads(task, one, i);
        while (turns[i].load(std::memory_order_acquire) != block) std::this_thread::yield();
        kernel.add_query_grads(task, one, i);
        turns[i].store(block + 1, std::memory_order_release);
      }
    }
    kernel.end(task);
  }

  /// Sums of 16-bit types, or of columns that are apart, to where they belong.
  void round_sums(size_type b, size_type h, size_type block) const {
    const size_type i0 = block * queries, n_q = p.forward.n_q(b);
    if (i0 >= n_q) return;
    const strided_rows<Acc> from = query_sums(b, h);
    const auto to = kernel_view<In>(p.query_rows(p.grad_query, b, h));
    kernel.round_rows(from.at(i0), from.row, (std::min)(queries, n_q - i0), p.forward.query.cols,
                      to.at(i0), to.row, to.col);
  }

  /// The gradients of terms that are one number a head: sums over sequences and blocks of queries.
  void finish_heads() const {
    if (!p.terms.grad_alibi && !p.terms.grad_logit_scales && !p.terms.grad_sinks) return;
    const problem<Scalar>& forward = p.forward;
    const bool each_alibi = p.terms.grad_alibi && p.terms.grad_alibi->view.batch > 1;
    for (size_type h = 0; h < forward.num_heads(); ++h) {
      double alibi = 0, logit_scale = 0, sink = 0;
      for (size_type b = 0; b < forward.batch(); ++b) {
        if (each_alibi) alibi = 0;
        const auto* const sums = at<backward_sums>(plan.sums) + first_block(b, h);
        for (size_type i = 0; i * queries < forward.n_q(b); ++i) {
          alibi += sums[i].alibi;
          logit_scale += sums[i].logit_scale;
        }
        if (p.terms.grad_alibi) term_head(p.terms.grad_alibi->view, b, h)(0, 0) = Acc(alibi);
        if (!p.terms.grad_sinks) continue;
        const auto score = forward.score(b, h);
        if (!score.has_sink) continue;
        const auto lse = p.query_rows(p.lse, b, h);
        const Acc* const delta = at<Acc>(plan.delta) + first_row(b, h);
        for (size_type i = 0; i < forward.n_q(b); ++i)
          sink -= std::exp(static_cast<double>(score.sink) - static_cast<double>(lse(i, 0))) *
                  static_cast<double>(delta[i]);
      }
      if (p.terms.grad_logit_scales) p.terms.grad_logit_scales->values[h] = Acc(logit_scale);
      if (p.terms.grad_sinks) p.terms.grad_sinks->values[h] = Acc(sink);
    }
  }

  /// What no task writes: gradients of rows that are not keys, and of biases that are not visible.
  void clear() const {
    p.clear_other_queries();
    p.clear_other_rows(p.grad_key);
    p.clear_other_rows(p.grad_value);
    if (p.terms.grad_bias) write_zeros(p.terms.grad_bias->view);
    if (p.terms.grad_alibi) write_zeros(p.terms.grad_alibi->view);
  }

 public:
  backward_run(const backward_problem<Scalar, Out>& problem, const plan_type& how, void* scratch)
      : p(problem),
        plan(how),
        memory(scratch),
        kernel(select_backward<In, KernelOut, Acc>(problem.forward.options.execution.target)) {}

  void run() const {
    const problem<Scalar>& forward = p.forward;
    executor* const pool = forward.options.execution.executor;
    size_type longest = 0;
    for (size_type b = 0; b < forward.batch(); ++b) longest = (std::max)(longest, forward.n_q(b));
    const size_type blocks = (longest + queries - 1) / queries, heads = forward.num_heads(),
                    kv_heads = forward.batch() * forward.key.heads;
    const auto each_block = [&](const auto& work) {
      for_each_task(forward.batch() * heads * blocks, plan.workers, pool, [&](size_type t, int) {
        const size_type head = t / blocks;
        work(head / heads, head % heads, t % blocks);
      });
    };
    clear();
    each_block([&](size_type b, size_type h, size_type i) { prepare(b, h, i); });
    if (plan.shares_bias)
      for_each_task(plan.key_blocks, plan.workers, pool, [&](size_type block, int worker) {
        for (size_type t = 0; t < kv_heads; ++t)
          run_keys(t / forward.key.heads, t % forward.key.heads, block, worker);
      });
    else
      for_each_task(plan.key_blocks * kv_heads, plan.workers, pool, [&](size_type t, int worker) {
        // As many heads at a time as there are workers: a turn has mostly come, and the queries of
        // a head stay near.
        const size_type together = (std::min)(size_type{plan.workers}, kv_heads),
                        first = t / (plan.key_blocks * together) * together,
                        here = (std::min)(together, kv_heads - first),
                        at = t - first * plan.key_blocks, head = first + at % here;
        run_keys(head / forward.key.heads, head % forward.key.heads, at / here, worker);
      });
    if (plan.own_sums)
      each_block([&](size_type b, size_type h, size_type i) { round_sums(b, h, i); });
    finish_heads();
    forward.rethrow();
  }
};

inline namespace link_heed_kernels_built_with_the_same_flags {
template <typename Scalar, typename Out>
size_type bytes_on_kernels(const backward_problem<Scalar, Out>& p) {
  return backward_plan<Scalar>(p).bytes();
}

template <typename Scalar, typename Out>
void run_on_kernels(const backward_problem<Scalar, Out>& p, workspace& memory) {
  const backward_plan<Scalar> plan(p);
  backward_run<Scalar, Out>(p, plan, memory.reserve(plan.bytes())).run();
}
}  // namespace link_heed_kernels_built_with_the_same_flags

}  // namespace detail
HEED_NAMESPACE_END

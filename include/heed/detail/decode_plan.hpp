#pragma once

#include <heed/detail/decode_params.hpp>
#include <heed/detail/dispatch.hpp>
#include <heed/detail/make_problem.hpp>
#include <heed/executor.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>
#include <thread>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

template <typename Query, typename Stored, typename Acc>
decode_kernel<Query, Stored, Acc> select_decode(isa target) {
  return with_kernels(
      target, [](auto set) { return decltype(set)::template decoding<Query, Stored, Acc>(); });
}

/// Whether sequence b has so few queries for its keys that decode beats the forward kernel. That
/// one spends as much on a single query as on a vector of them and reads the keys once for each
/// query head; decode spends in proportion, but takes blocks with hidden pairs row by row. Measured
/// on AVX-512: one query wins from a few keys on, 4 from some hundred, 8 from two thousand, 16
/// never by much. Block masks stay with the forward kernel, which does not read what they hide, and
/// so do tables of relative positions and weight functions, which it alone knows.
template <typename Scalar, typename Stored>
bool is_decode(const problem<Scalar, Stored>& p, size_type b, size_type n_kv) {
  const size_type n_q = p.n_q(b);
  return (n_q <= 1 || (n_q <= 8 && n_kv >= 256 * n_q)) && !p.terms.takes_blocks();
}
template <typename Scalar, typename Stored>
bool is_decode(const problem<Scalar, Stored>& p, size_type b) {
  return is_decode(p, b, p.n_kv(b));
}

/// Keys that one task reads. It follows from the number of keys alone, so that neither threads nor
/// the rest of a batch change a result.
inline size_type decode_part(size_type n_kv) {
  return (std::max)(11 * decode_block,
                    (n_kv / 32 + decode_block - 1) / decode_block * decode_block);
}

/// The parts that any number of keys up to `most` can make. One has 11 blocks or more, and no less
/// than the whole part of n / 32: from 352 blocks on the remainder may make one more than 32.
inline size_type most_decode_parts(size_type most) {
  return (std::min)(size_type{33}, (most + 11 * decode_block - 1) / (11 * decode_block));
}

/// The keys of sequence b that any of its queries may see by position, cut into parts: at least
/// one, which may have no key.
struct decode_cut {
  size_type begin = 0, end = 0, part = 1;
  size_type parts() const { return (std::max)(size_type{1}, (end - begin + part - 1) / part); }
};
template <typename Scalar, typename Stored>
decode_cut cut_keys(const problem<Scalar, Stored>& p, size_type b) {
  const index_range reach = p.reach(b);
  return {reach.begin, reach.end, decode_part(p.n_kv(b))};
}

/// What the parts of one key/value head leave for each query row: sums of weighed values, maxima in
/// units of log 2, sums of weights.
template <typename Acc>
struct decode_results {
  Acc* data;
  size_type rows, d_v;

  size_type part_size() const { return rows * (d_v + 2); }
  Acc* out(size_type part, size_type row) const { return data + part * part_size() + row * d_v; }
  Acc& largest(size_type part, size_type row) const {
    return data[part * part_size() + rows * d_v + row];
  }
  Acc& sum(size_type part, size_type row) const {
    return data[part * part_size() + rows * (d_v + 1) + row];
  }
};

/// The largest score of a row in units of log 2, and the sum of its weights.
template <typename Acc>
struct row_total {
  Acc max, sum;
};

/// What each part of a row, in their order, and the sink of its head have to do with the whole: the
/// sum of a part becomes the factor of its values.
template <typename Acc>
row_total<Acc> weigh_parts(const decode_results<Acc>& results, size_type parts, size_type row,
                           const score_params<Acc>& score) {
  constexpr double ln2 = 0.69314718055994531;
  const Acc sink = static_cast<Acc>(score.sink / ln2);
  Acc top = score.has_sink ? sink : std::numeric_limits<Acc>::lowest();
  for (size_type s = 0; s < parts; ++s) top = (std::max)(top, results.largest(s, row));
  Acc sum = score.has_sink ? std::exp2(sink - top) : Acc(0);
  for (size_type s = 0; s < parts; ++s) {
    const Acc weight = std::exp2(results.largest(s, row) - top);
    sum += weight * results.sum(s, row);
    results.sum(s, row) = weight;
  }
  const bool empty = is_empty_row(sum);
  for (size_type s = 0; s < parts; ++s)
    results.sum(s, row) = empty ? Acc(0) : results.sum(s, row) / sum;
  return {top, sum};
}

/// Key/value heads of a task: all, where their rows are side by side, for then the bytes come in
/// the order of memory; alone, each head would fetch a few lines of every page, and look the page
/// up, again.
constexpr size_type decode_heads_limit = 64;
template <typename Scalar, typename Stored>
size_type decode_heads(const problem<Scalar, Stored>& p, size_type parts) {
  if (!p.heads_adjoin() || p.key.heads < 2) return 1;
  size_type heads = (std::min)(p.key.heads, decode_heads_limit);
  const size_type workers = workers_of(p.options.execution);
  while (workers > 1 && heads > 1 && p.key.heads / heads * parts < 4 * workers)
    heads = (heads + 1) / 2;
  return heads;
}

/// How sequences run on decode. It follows from shapes, lengths and strides alone.
struct decode_plan {
  size_type rows = 0;     // query rows of a key/value head
  size_type longest = 0;  // parts of a sequence
  size_type heads = 1, bundles = 0,
            tasks = 0;  // key/value heads of a task; how many such make all heads
  size_type score_bytes = 0, query_bytes = 0, head_bytes = 0, params_bytes = 0, worker_bytes = 0;
  size_type result_size = 0;   // elements that a part of a head leaves
  size_type result_bytes = 0;  // of all parts of a bundle
  size_type slot_count = 0;    // bundles of more than a part that may be at work at the same time
  size_type order_bytes = 0;   // of the numbers of sequences among those of more than a part
  size_type bytes = 0;         // of all workers, slots and numbers
  int workers = 1;
};

/// Where parts of a bundle meet. Bundles take slots in turns; who ends the last part of one
/// merges them, and lets the next bundle in. Tasks begin in ascending order: whoever waits waits
/// for tasks that have begun, and the first of those for nobody.
struct decode_slot {
  std::atomic<size_type> turn, ended;
};

/// For sequences of parts(b) parts; 0: decode does not take it.
template <typename Scalar, typename Stored, typename Parts>
decode_plan plan_decode(const problem<Scalar, Stored>& p, const Parts& parts) {
  using Acc = accumulator_t<Scalar>;
  using In = kernel_scalar<Stored>;
  const size_type batch = p.batch(), kv_heads = p.key.heads, group = p.group(), d_k = p.query.cols,
                  d_v = p.value.cols;
  decode_plan plan;
  size_type all_parts = 0;
  for (size_type b = 0; b < batch; ++b) {
    const size_type of_b = parts(b);
    if (of_b == 0) continue;
    plan.longest = (std::max)(plan.longest, of_b);
    all_parts += of_b;
    plan.rows = (std::max)(plan.rows, p.n_q(b) * group);
  }
  if (plan.rows == 0) return plan;
  plan.heads = decode_heads(p, all_parts);
  plan.bundles = (kv_heads + plan.heads - 1) / plan.heads;
  plan.tasks = batch * plan.bundles * plan.longest;
  plan.workers = workers_of(p.options.execution, plan.tasks);

  plan.score_bytes = padded_bytes(group * size_type{sizeof(score_params<Acc>)});
  plan.query_bytes = padded_bytes(plan.rows * padded_row(d_k) * size_type{sizeof(Acc)});
  plan.head_bytes =
      plan.score_bytes + plan.query_bytes + decode_layout<Acc>(plan.rows, d_k, d_v).bytes();
  plan.params_bytes = padded_bytes(plan.heads * size_type{sizeof(decode_params<In, Acc>)});
  plan.result_size = plan.rows * (d_v + 2);
  const size_type part_bytes = padded_bytes(plan.heads * plan.result_size * size_type{sizeof(Acc)});
  plan.worker_bytes = plan.params_bytes + plan.heads * plan.head_bytes +
                      decode_copies_layout<Acc>(plan.rows, d_k, d_v).bytes() + part_bytes;
  if (plan.longest > 1) {
    plan.slot_count = plan.workers;
    plan.result_bytes = padded_bytes(size_type{sizeof(decode_slot)}) + plan.longest * part_bytes;
    plan.order_bytes = padded_bytes(batch * size_type{sizeof(size_type)});
  }
  plan.bytes =
      plan.workers * plan.worker_bytes + plan.slot_count * plan.result_bytes + plan.order_bytes;
  return plan;
}

/// For the sequences b that are `chosen`, as long as they are.
template <typename Scalar, typename Stored, typename Chosen>
decode_plan plan_decode_now(const problem<Scalar, Stored>& p, const Chosen& chosen) {
  return plan_decode(p, [&](size_type b) { return chosen(b) ? cut_keys(p, b).parts() : 0; });
}

/// For the sequences of a call that grows: what it needs is enough at any length, for heads of a
/// task, workers and results are no more where there are fewer parts.
template <typename Scalar, typename Stored>
decode_plan plan_longest_decode(const problem<Scalar, Stored>& p) {
  return plan_decode(p, [&](size_type b) {
    if (!is_decode(p, b, p.key.capacity)) return size_type{0};
    const detail::band band = p.band(b);
    return (std::max)(size_type{1}, most_decode_parts((std::min)(
                                        p.key.capacity, p.n_q(b) + (band.high - band.low))));
  });
}

/// Few queries against many keys, as planned. A task is all query rows of a bundle of key/value
/// heads against a part of their keys; the parts of a bundle are merged in a fixed order.
template <typename Scalar, typename Stored>
class decode_run {
  using Acc = accumulator_t<Scalar>;
  using Query = kernel_scalar<Scalar>;
  using In = kernel_scalar<Stored>;

  const problem<Scalar, Stored>& p;
  const decode_plan& plan;
  unsigned char* const scratch;
  const decode_kernel<Query, In, Acc> kernel;
  const size_type group, d_k, d_v;

  unsigned char* slot_memory(size_type slot) const {
    return scratch + plan.workers * plan.worker_bytes + slot * plan.result_bytes;
  }
  decode_slot& slot_at(size_type slot) const {
    return *reinterpret_cast<decode_slot*>(slot_memory(slot));
  }
  /// For sequence b, how many before it have more than a part.
  size_type* order() const {
    return reinterpret_cast<size_type*>(scratch + plan.workers * plan.worker_bytes +
                                        plan.slot_count * plan.result_bytes);
  }
  /// The parts of the n-th head of a bundle, where `parts` have room.
  decode_results<Acc> results_of(unsigned char* memory, size_type b, size_type n,
                                 size_type parts) const {
    return {reinterpret_cast<Acc*>(memory) + n * parts * plan.result_size, p.n_q(b) * group, d_v};
  }

  /// What the kernel has to know of key/value head h_kv.
  void place_head(size_type b, size_type h_kv, const decode_cut& cut, size_type part,
                  const decode_results<Acc>& result, size_type place, unsigned char* of_head,
                  decode_params<In, Acc>* to) const {
    score_params<Acc>* const score = reinterpret_cast<score_params<Acc>*>(of_head);
    Acc* const query = reinterpret_cast<Acc*>(of_head + plan.score_bytes);
    for (size_type g = 0; g < group; ++g) {
      const head_problem<Scalar, Stored> head = p.head(b, h_kv * group + g);
      new (score + g) score_params<Acc>(head.score);
      kernel.load_query(reinterpret_cast<const Query*>(head.query.data), head.query.row_stride,
                        head.query.col_stride, p.n_q(b), d_k,
                        query + g * p.n_q(b) * padded_row(d_k), padded_row(d_k));
    }
    const head_problem<Scalar, Stored> head = p.head(b, h_kv * group);
    decode_params<In, Acc>& params = *new (to) decode_params<In, Acc>;
    params.query = query;
    params.query_row = padded_row(d_k);
    params.key = kernel_rows(head.key);
    params.value = kernel_rows(head.value);
    params.score = score;
    params.rows = p.n_q(b) * group;
    params.n_q = p.n_q(b);
    params.d_k = d_k;
    params.d_v = d_v;
    params.j_begin = cut.begin + part * cut.part;
    params.j_end = (std::min)(params.j_begin + cut.part, cut.end);
    params.out = result.out(place, 0);
    params.max = &result.largest(place, 0);
    params.sum = &result.sum(place, 0);
    params.scratch = of_head + plan.score_bytes + plan.query_bytes;
  }

  void merge(size_type b, size_type h_kv, const decode_results<Acc>& result,
             size_type parts) const {
    for (size_type row = 0; row < result.rows; ++row) {
      const size_type i = row % p.n_q(b);
      const head_problem<Scalar, Stored> head = p.head(b, h_kv * group + row / p.n_q(b));
      const row_total<Acc> total = weigh_parts(result, parts, row, head.score);
      kernel.merge_row(result.out(0, row), &result.sum(0, row), result.part_size(), parts, d_v,
                       reinterpret_cast<Query*>(head.out.data + i * head.out.row_stride),
                       head.out.col_stride);
      if (head.lse.data) head.lse(i, 0) = log_sum_exp(total.max, total.sum);
      if (head.largest) head.largest[i] = largest_score_of(total.max, total.sum);
    }
  }

 public:
  decode_run(const problem<Scalar, Stored>& problem, const decode_plan& how, void* memory)
      : p(problem),
        plan(how),
        scratch(static_cast<unsigned char*>(memory)),
        kernel(select_decode<Query, In, Acc>(problem.options.execution.target)),
        group(problem.group()),
        d_k(problem.query.cols),
        d_v(problem.value.cols) {}

  /// Before the first task.
  template <typename Chosen>
  void prepare(const Chosen& chosen) const {
    for (size_type slot = 0; slot < plan.slot_count; ++slot) {
      decode_slot* const made = new (slot_memory(slot)) decode_slot;
      made->turn = slot, made->ended = 0;
    }
    size_type before = 0;
    for (size_type b = 0; plan.slot_count > 0 && b < p.batch(); ++b) {
      order()[b] = before;
      before += chosen(b) && p.n_q(b) > 0 && cut_keys(p, b).parts() > 1;
    }
  }

  void run(size_type b, size_type bundle, size_type part, int worker) const {
    const decode_cut cut = cut_keys(p, b);
    const size_type parts = cut.parts();
    if (part >= parts) return;
    const size_type first = bundle * plan.heads,
                    num_heads = (std::min)(plan.heads, p.key.heads - first);
    unsigned char* const own = scratch + worker * plan.worker_bytes;
    unsigned char* const copies = own + plan.params_bytes + plan.heads * plan.head_bytes;
    const decode_copies_layout<Acc> copies_at(plan.rows, d_k, d_v);

    const bool alone = parts == 1;
    const size_type turn = alone ? 0 : order()[b] * plan.bundles + bundle,
                    slot = alone ? 0 : turn % plan.slot_count;
    unsigned char* const results =
        alone ? copies + copies_at.bytes()
              : slot_memory(slot) + padded_bytes(size_type{sizeof(decode_slot)});
    if (!alone)
      while (slot_at(slot).turn.load(std::memory_order_acquire) != turn) std::this_thread::yield();

    auto* const heads = reinterpret_cast<decode_params<In, Acc>*>(own);
    for (size_type n = 0; n < num_heads; ++n)
      place_head(b, first + n, cut, part, results_of(results, b, n, parts), part,
                 own + plan.params_bytes + n * plan.head_bytes, heads + n);
    kernel.run(heads, num_heads, decode_copies<Acc>::carve(copies, copies_at));

    if (!alone && slot_at(slot).ended.fetch_add(1, std::memory_order_acq_rel) + 1 < parts) return;
    for (size_type n = 0; n < num_heads; ++n)
      merge(b, first + n, results_of(results, b, n, parts), parts);
    if (alone) return;
    slot_at(slot).ended.store(0, std::memory_order_relaxed);
    slot_at(slot).turn.store(turn + plan.slot_count, std::memory_order_release);
  }
};

/// Runs the sequences b that are `chosen` on decode.
template <typename Scalar, typename Stored, typename Chosen>
void decode(const problem<Scalar, Stored>& p, const decode_plan& plan, void* memory,
            const Chosen& chosen) {
  if (plan.rows == 0) return;
  const decode_run<Scalar, Stored> run(p, plan, memory);
  run.prepare(chosen);
  for_each_task(plan.tasks, plan.workers, p.options.execution.executor,
                [&](size_type task, int worker) {
                  const size_type b = task / plan.longest / plan.bundles;
                  if (chosen(b) && p.n_q(b) > 0)
                    run.run(b, task / plan.longest % plan.bundles, task % plan.longest, worker);
                });
}

}  // namespace detail
HEED_NAMESPACE_END

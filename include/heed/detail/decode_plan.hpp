#pragma once

#include <heed/detail/decode_params.hpp>
#include <heed/detail/dispatch.hpp>
#include <heed/detail/make_problem.hpp>
#include <heed/detail/selected.hpp>
#include <heed/executor.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
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
/// With selected keys each query has its own, and is decoded alone.
template <typename Scalar, typename Stored>
bool is_decode(const problem<Scalar, Stored>& p, size_type b, size_type n_kv) {
  if (p.terms.gathers_keys()) return true;
  const size_type n_q = p.n_q(b);
  return (n_q <= 1 || (n_q <= 8 && n_kv >= 256 * n_q)) && !p.terms.takes_blocks();
}
template <typename Scalar, typename Stored>
bool is_decode(const problem<Scalar, Stored>& p, size_type b) {
  return is_decode(p, b, p.n_kv(b));
}

/// Queries that decode takes together: [first, first + count) of sequence b.
struct decode_queries {
  size_type b = 0, first = 0, count = 0;
};
/// All of a sequence; with selected keys each row of queries alone, of which padding is none.
template <typename Scalar, typename Stored>
size_type decode_units(const problem<Scalar, Stored>& p) {
  return p.terms.gathers_keys() ? p.query.batch * p.query.rows : p.batch();
}
template <typename Scalar, typename Stored>
decode_queries queries_of(const problem<Scalar, Stored>& p, size_type unit) {
  if (!p.terms.gathers_keys()) return {unit, 0, p.n_q(unit)};
  const size_type b = p.sequence_of(unit),
                  i = unit - (p.ragged() ? p.first_query(b) : b * p.query.rows);
  return {b, i, i < p.n_q(b) ? 1 : 0};
}

/// Keys that one part has. It follows from the number of keys alone, so that neither threads nor
/// the rest of a batch change a result.
constexpr size_type least_decode_part = 11 * decode_block;
inline size_type decode_part(size_type n_kv) {
  return (std::max)(least_decode_part,
                    (n_kv / 32 + decode_block - 1) / decode_block * decode_block);
}

/// The parts that any number of keys up to `most` can make. One has 11 blocks or more, and no less
/// than the whole part of n / 32: from 352 blocks on the remainder may make one more than 32.
inline size_type most_decode_parts(size_type most) {
  return (std::min)(size_type{33}, (most + least_decode_part - 1) / least_decode_part);
}

/// The keys of a unit that any of its queries may see by position, cut into parts: at least one,
/// which may have no key. A list is cut at the same places however long it is: what pads it changes
/// nothing.
struct decode_cut {
  size_type begin = 0, end = 0, part = 1;
  size_type parts() const { return (std::max)(size_type{1}, (end - begin + part - 1) / part); }
};
template <typename Scalar, typename Stored>
decode_cut cut_keys(const problem<Scalar, Stored>& p, size_type u) {
  if (p.terms.gathers_keys()) return {0, p.terms.selected->view.cols, least_decode_part};
  const index_range reach = p.reach(u);
  return {reach.begin, reach.end, decode_part(p.n_kv(u))};
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

/// Key/value heads as decode takes them: one for each query head where each has its own list.
template <typename Scalar, typename Stored>
size_type decode_kv_heads(const problem<Scalar, Stored>& p) {
  const bool own = p.terms.gathers_keys() && p.terms.selected->view.heads > p.key.heads;
  return own ? p.num_heads() : p.key.heads;
}
/// Key/value heads of a task: all, where their rows are side by side, for then the bytes come in
/// the order of memory; alone, each head would fetch a few lines of every page, and look the page
/// up, again.
constexpr size_type decode_heads_limit = 64;
template <typename Scalar, typename Stored>
size_type decode_heads(const problem<Scalar, Stored>& p, size_type parts) {
  if (!p.heads_adjoin() || p.key.heads < 2) return 1;
  if (p.terms.gathers_keys() && p.terms.selected->view.heads > 1) return 1;  // they have other keys
  size_type heads = (std::min)(p.key.heads, decode_heads_limit);
  const size_type workers = workers_of(p.options.execution);
  while (workers > 1 && heads > 1 && p.key.heads / heads * parts < 4 * workers)
    heads = (heads + 1) / 2;
  return heads;
}

/// How units run on decode. It follows from shapes, lengths and strides alone.
struct decode_plan {
  size_type rows = 0;                 // query rows of a key/value head
  size_type longest = 0;              // parts of a unit
  size_type kv_heads = 0, group = 1;  // and query heads of each
  size_type heads = 1, bundles = 0;   // key/value heads of a task; how many such make all heads
  size_type shares = 1;               // tasks that share the parts of a bundle
  size_type tasks = 0;
  size_type score_bytes = 0, row_bytes = 0, query_bytes = 0, head_bytes = 0, params_bytes = 0,
            copy_bytes = 0, own_bytes = 0, key_bytes = 0, taken_bytes = 0, worker_bytes = 0;
  size_type result_size = 0;   // elements that a part of a head leaves
  size_type result_bytes = 0;  // of all parts of a bundle
  size_type slot_count = 0;    // bundles of more than a part that may be at work at the same time
  size_type order_bytes = 0;   // of the numbers of units among those of more than a part
  size_type bytes = 0;         // of all workers, slots and numbers
  int workers = 1;

  // The scratch of a worker, piece after piece: what the kernel is told, heads, copies, the parts
  // of a bundle that no other task has a share of, a list of keys and a set of them.
  size_type head_at(size_type n) const { return params_bytes + n * head_bytes; }
  size_type copies_at() const { return head_at(heads); }
  size_type own_at() const { return copies_at() + copy_bytes; }
  size_type keys_at() const { return own_at() + own_bytes; }
  size_type taken_at() const { return keys_at() + key_bytes; }
};

/// Where parts of a bundle meet. Bundles take slots in turns; who ends the last part of one
/// merges them, and lets the next bundle in. Tasks begin in ascending order: whoever waits waits
/// for tasks that have begun, and the first of those for nobody.
struct decode_slot {
  std::atomic<size_type> turn, ended;
};

/// For units of parts(u) parts; 0: decode does not take it.
template <typename Scalar, typename Stored, typename Parts>
decode_plan plan_decode(const problem<Scalar, Stored>& p, const Parts& parts) {
  using Acc = accumulator_t<Scalar>;
  using In = kernel_scalar<Stored>;
  const size_type units = decode_units(p), d_k = p.query.cols, d_v = p.value.cols;
  decode_plan plan;
  plan.kv_heads = decode_kv_heads(p);
  plan.group = plan.kv_heads > 0 ? p.num_heads() / plan.kv_heads : 1;
  size_type all_parts = 0;
  for (size_type u = 0; u < units; ++u) {
    const size_type of_u = parts(u);
    if (of_u == 0) continue;
    plan.longest = (std::max)(plan.longest, of_u);
    all_parts += of_u;
    plan.rows = (std::max)(plan.rows, queries_of(p, u).count * plan.group);
  }
  if (plan.rows == 0) return plan;
  plan.heads = decode_heads(p, all_parts);
  plan.bundles = (plan.kv_heads + plan.heads - 1) / plan.heads;
  plan.shares = plan.longest;
  if (p.terms.gathers_keys())  // each task gathers the keys: no more than threads need
    plan.shares = (std::min)(plan.longest, (4 * size_type{workers_of(p.options.execution)} - 1) /
                                                   (std::max)(size_type{1}, units * plan.bundles) +
                                               1);
  plan.tasks = units * plan.bundles * plan.shares;
  plan.workers = workers_of(p.options.execution, plan.tasks);

  plan.score_bytes = padded_bytes(plan.group * size_type{sizeof(score_params<Acc>)});
  if (p.terms.gathers_keys()) {
    plan.row_bytes = padded_bytes(plan.group * size_type{sizeof(selected_row<Acc>)});
    plan.key_bytes = padded_bytes(p.terms.selected->view.cols * size_type{sizeof(size_type)});
    plan.taken_bytes = padded_bytes(key_set_words((std::max)(p.key.capacity, p.key.rows)) *
                                    size_type{sizeof(std::uint64_t)});
  }
  plan.query_bytes = padded_bytes(plan.rows * padded_row(d_k) * size_type{sizeof(Acc)});
  plan.head_bytes = plan.score_bytes + plan.row_bytes + plan.query_bytes +
                    decode_layout<Acc>(plan.rows, d_k, d_v).bytes();
  plan.params_bytes = padded_bytes(plan.heads * size_type{sizeof(decode_params<In, Acc>)});
  plan.result_size = plan.rows * (d_v + 2);
  const size_type part_bytes = padded_bytes(plan.heads * plan.result_size * size_type{sizeof(Acc)});
  plan.copy_bytes = decode_copies_layout<Acc>(plan.rows, d_k, d_v).bytes();
  plan.own_bytes = plan.shares > 1 ? part_bytes : plan.longest * part_bytes;
  plan.worker_bytes = plan.taken_at() + plan.taken_bytes;
  if (plan.shares > 1) {
    plan.slot_count = plan.workers;
    plan.result_bytes = padded_bytes(size_type{sizeof(decode_slot)}) + plan.longest * part_bytes;
    plan.order_bytes = padded_bytes(units * size_type{sizeof(size_type)});
  }
  plan.bytes =
      plan.workers * plan.worker_bytes + plan.slot_count * plan.result_bytes + plan.order_bytes;
  return plan;
}

/// For the sequences b that are `chosen`, as long as they are.
template <typename Scalar, typename Stored, typename Chosen>
decode_plan plan_decode_now(const problem<Scalar, Stored>& p, const Chosen& chosen) {
  return plan_decode(
      p, [&](size_type u) { return chosen(queries_of(p, u).b) ? cut_keys(p, u).parts() : 0; });
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
/// heads against a part of their keys, or some; the parts of a bundle are merged in a fixed order.
template <typename Scalar, typename Stored>
class decode_run {
  using Acc = accumulator_t<Scalar>;
  using Query = kernel_scalar<Scalar>;
  using In = kernel_scalar<Stored>;

  const problem<Scalar, Stored>& p;
  const decode_plan& plan;
  unsigned char* const scratch;
  const decode_kernel<Query, In, Acc> kernel;
  const size_type d_k, d_v;

  unsigned char* slot_memory(size_type slot) const {
    return scratch + plan.workers * plan.worker_bytes + slot * plan.result_bytes;
  }
  decode_slot& slot_at(size_type slot) const {
    return *reinterpret_cast<decode_slot*>(slot_memory(slot));
  }
  /// For each unit, how many before it have more than a part.
  size_type* order() const {
    return reinterpret_cast<size_type*>(scratch + plan.workers * plan.worker_bytes +
                                        plan.slot_count * plan.result_bytes);
  }
  /// The parts of the n-th head of a bundle, where `parts` have room.
  decode_results<Acc> results_of(unsigned char* memory, const decode_queries& queries, size_type n,
                                 size_type parts) const {
    return {reinterpret_cast<Acc*>(memory) + n * parts * plan.result_size,
            queries.count * plan.group, d_v};
  }

  /// What the kernel has to know of key/value head h_kv, but for the part. `keys`: those that are
  /// selected.
  void place_head(const decode_queries& queries, size_type h_kv, const decode_cut& cut,
                  const size_type* keys, unsigned char* of_head, decode_params<In, Acc>* to) const {
    score_params<Acc>* const score = reinterpret_cast<score_params<Acc>*>(of_head);
    auto* const rows = reinterpret_cast<selected_row<Acc>*>(of_head + plan.score_bytes);
    Acc* const query = reinterpret_cast<Acc*>(of_head + plan.score_bytes + plan.row_bytes);
    decode_params<In, Acc>& params = *new (to) decode_params<In, Acc>;
    for (size_type g = 0; g < plan.group; ++g) {
      const auto [b, first, count] = queries;
      const size_type h = h_kv * plan.group + g;
      const head_problem<Scalar, Stored> head =
          p.terms.gathers_keys()
              ? selected_head(p, b, h, first, keys, cut.end, *new (rows + g) selected_row<Acc>)
              : p.head(b, h, first, count);
      new (score + g) score_params<Acc>(head.score);
      kernel.load_query(reinterpret_cast<const Query*>(head.query.data), head.query.row_stride,
                        head.query.col_stride, count, d_k, query + g * count * padded_row(d_k),
                        padded_row(d_k));
      if (g > 0) continue;
      params.key = kernel_rows(head.key);
      params.value = kernel_rows(head.value);
    }
    params.query = query;
    params.query_row = padded_row(d_k);
    params.score = score;
    params.rows = queries.count * plan.group;
    params.n_q = queries.count;
    params.d_k = d_k;
    params.d_v = d_v;
    params.scratch = of_head + plan.score_bytes + plan.row_bytes + plan.query_bytes;
  }
  static void place_part(const decode_cut& cut, size_type part, const decode_results<Acc>& result,
                         decode_params<In, Acc>& params) {
    params.j_begin = cut.begin + part * cut.part;
    params.j_end = (std::min)(params.j_begin + cut.part, cut.end);
    params.out = result.out(part, 0);
    params.max = &result.largest(part, 0);
    params.sum = &result.sum(part, 0);
  }

  void merge(const decode_queries& queries, size_type h_kv, const decode_results<Acc>& result,
             size_type parts) const {
    for (size_type row = 0; row < result.rows; ++row) {
      const size_type i = row % queries.count;
      const head_problem<Scalar, Stored> head =
          p.head(queries.b, h_kv * plan.group + row / queries.count, queries.first, queries.count);
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
        d_k(problem.query.cols),
        d_v(problem.value.cols) {}

  /// The keys of the list that the queries of key/value head h_kv have, and how many.
  size_type gather(const decode_queries& queries, size_type h_kv, unsigned char* own) const {
    return gather_keys(p, queries.b, queries.first,
                       p.selected(queries.b, h_kv * plan.group).of(queries.first),
                       scratch_at<std::uint64_t>(own, plan.taken_at()),
                       scratch_at<size_type>(own, plan.keys_at()));
  }

  /// Before the first task.
  template <typename Chosen>
  void prepare(const Chosen& chosen) const {
    for (size_type slot = 0; slot < plan.slot_count; ++slot) {
      decode_slot* const made = new (slot_memory(slot)) decode_slot;
      made->turn = slot, made->ended = 0;
    }
    size_type before = 0;
    for (size_type u = 0; plan.slot_count > 0 && u < decode_units(p); ++u) {
      order()[u] = before;
      const decode_queries queries = queries_of(p, u);
      before += chosen(queries.b) && queries.count > 0 && cut_keys(p, u).parts() > 1;
    }
    for (int worker = 0; worker < plan.workers; ++worker) {
      unsigned char* const taken = scratch + worker * plan.worker_bytes + plan.taken_at();
      std::fill(taken, taken + plan.taken_bytes, static_cast<unsigned char>(0));
    }
  }

  void run(size_type u, size_type bundle, size_type share, int worker) const {
    decode_cut cut = cut_keys(p, u);
    const size_type parts = cut.parts(), each = (plan.longest + plan.shares - 1) / plan.shares,
                    begin = share * each, end = (std::min)(begin + each, parts);
    if (begin >= end) return;
    const decode_queries queries = queries_of(p, u);
    const size_type first = bundle * plan.heads,
                    num_heads = (std::min)(plan.heads, plan.kv_heads - first);
    unsigned char* const own = scratch + worker * plan.worker_bytes;

    const bool alone = plan.shares == 1 || parts == 1;
    const size_type turn = alone ? 0 : order()[u] * plan.bundles + bundle,
                    slot = alone ? 0 : turn % plan.slot_count;
    unsigned char* const results =
        alone ? own + plan.own_at()
              : slot_memory(slot) + padded_bytes(size_type{sizeof(decode_slot)});
    if (!alone)
      while (slot_at(slot).turn.load(std::memory_order_acquire) != turn) std::this_thread::yield();

    if (p.terms.gathers_keys()) cut.end = gather(queries, first, own);
    auto* const heads = reinterpret_cast<decode_params<In, Acc>*>(own);
    for (size_type n = 0; n < num_heads; ++n)
      place_head(queries, first + n, cut, scratch_at<size_type>(own, plan.keys_at()),
                 own + plan.head_at(n), heads + n);
    const auto copies = decode_copies<Acc>::carve(own + plan.copies_at(),
                                                  decode_copies_layout<Acc>(plan.rows, d_k, d_v));
    for (size_type part = begin; part < end; ++part) {
      for (size_type n = 0; n < num_heads; ++n)
        place_part(cut, part, results_of(results, queries, n, parts), heads[n]);
      kernel.run(heads, num_heads, copies);
    }

    if (!alone &&
        slot_at(slot).ended.fetch_add(end - begin, std::memory_order_acq_rel) + end - begin < parts)
      return;
    for (size_type n = 0; n < num_heads; ++n)
      merge(queries, first + n, results_of(results, queries, n, parts), parts);
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
                  const size_type u = task / plan.shares / plan.bundles;
                  const decode_queries queries = queries_of(p, u);
                  if (chosen(queries.b) && queries.count > 0)
                    run.run(u, task / plan.shares % plan.bundles, task % plan.shares, worker);
                });
}

}  // namespace detail
HEED_NAMESPACE_END

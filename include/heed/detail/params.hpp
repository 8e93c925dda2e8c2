#pragma once

#include <heed/detail/abi.hpp>
#include <heed/detail/integers.hpp>
#include <heed/float8.hpp>
#include <heed/quantised.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

// The boundary between plans and kernels: numbers and pointers, nothing of Eigen.

HEED_NAMESPACE_BEGIN
namespace detail {

using size = std::ptrdiff_t;

/// Stands for "no limit" in a band; small enough that adding an index to it cannot overflow.
constexpr size unbounded = (std::numeric_limits<size>::max)() / 4;

/// Storage of the 16-bit types as a kernel sees them.
struct bfloat16_bits {
  std::uint16_t bits;
};
struct half_bits {
  std::uint16_t bits;
};

/// Indices [begin, end).
struct index_range {
  size begin = 0, end = 0;

  constexpr bool empty() const { return begin >= end; }
  constexpr bool meets(size first, size last) const { return begin < last && end > first; }
};

/// The diagonal band of visible pairs that causal masks and windows make: query i sees key j when i
/// + low <= j <= i + high.
struct band {
  size low = -unbounded, high = unbounded;

  /// Whether queries [i, i + ni) see all of the keys [j, j + nj).
  constexpr bool shows(size i, size ni, size j, size nj) const {
    return j >= i + ni - 1 + low && j + nj - 1 <= i + high;
  }
  /// The keys of [0, n_kv) that queries [begin, end) reach, and the queries of [0, n_q) that reach
  /// keys [begin, end); where there are none the range may end before it begins.
  constexpr index_range keys_of(size begin, size end, size n_kv) const {
    return {begin + low < 0 ? 0 : begin + low, end + high > n_kv ? n_kv : end + high};
  }
  constexpr index_range queries_of(size begin, size end, size n_q) const {
    return {begin - high < 0 ? 0 : begin - high, end - low > n_q ? n_q : end - low};
  }
};

/// A block of scores or weights that a kernel has in scratch: the one of query i and key j is
/// data[(i - i_begin) * query_step + (j - j_begin) * key_step]. One of the steps is 1.
template <typename Acc>
struct score_block {
  Acc* data;
  size i_begin, i_end, j_begin, j_end;
  size query_step, key_step;
};

/// Something outside the kernels that works on a block of head h of sequence b. One indirect call a
/// block.
template <typename Acc>
struct block_hook {
  void (*run)(const void* context, size b, size h, const score_block<Acc>& block) = nullptr;
  const void* context = nullptr;
};

/// What a block of queries sees of a block of keys: nothing; what the mask function shows, or
/// everything where there is none; everything, and the mask function is not evaluated.
enum class block_state : std::uint8_t { hidden, partly, whole };

/// How an axis is cut into blocks: of one size, the last perhaps smaller, or each of its own.
struct block_cuts {
  size each = 1;
  const size* block_of = nullptr;  // of each row, where blocks have sizes of their own
  const size* starts = nullptr;    // then: where each begins; one entry more, where the last ends

  size at(size i) const { return block_of ? block_of[i] : i / each; }
  /// Where the block that row i is in ends; the last of one size may end later than the axis.
  size end(size i) const { return block_of ? starts[block_of[i] + 1] : (i / each + 1) * each; }
};

/// A mask by blocks: query i may see key j only where at(i, j) is not hidden.
struct block_mask_params {
  const block_state* states = nullptr;  // null: no such mask
  size row = 0;
  block_cuts queries, keys;
  bool whole_needs_no_hook = false;  // a whole block has nothing that mask_hook would hide

  block_state at(size i, size j) const {
    return states ? states[queries.at(i) * row + keys.at(j)] : block_state::partly;
  }
};

/// A table of relative positions: a row of `cols` numbers, which are side by side, for each
/// distance from a query to a key, from `left` before it to `right` after it; the first and the
/// last row are those of keys further away too.
template <typename Acc>
struct relative_rows {
  const Acc* data = nullptr;  // null: no such table
  size row = 0, cols = 0, left = 0, right = 0;

  constexpr size count() const { return data ? left + 1 + right : 0; }
  /// The row of a key that is `steps` after its query.
  constexpr const Acc* at(size steps) const {
    return data + (left + (steps < -left ? -left : steps > right ? right : steps)) * row;
  }
};

/// What the numbers of a bias are: of the scores' type or, beside floats, of 16 bits.
enum class bias_numbers : std::uint8_t { scores, half, bfloat16 };

/// How a score comes from a dot product, in this order; then the softmax with the sink, then
/// weight_hook. problem::score fills it in. Kernels and plans ask the functions below which terms
/// are there: a new term is added to all of these, to score.hpp and to kernel/score.inc.
template <typename Acc>
struct score_params {
  relative_rows<Acc> relative_keys, relative_values;  // are added to keys and to values
  size distance_offset = 0;  // query i stands at key i + distance_offset, for these and for ALiBi
  Acc scale = 1;
  Acc softcap = 0;             // 0: off
  const void* bias = nullptr;  // number i * bias_row + j * bias_col of these; -inf masks
  bias_numbers bias_type = bias_numbers::scores;
  size bias_row = 0, bias_col = 0;
  bool has_alibi = false;  // a slope of 0 may be one that is learned
  Acc alibi_slope = 0;     // adds -slope * |i + distance_offset - j|
  block_hook<Acc>
      score_hook;  // the user's score function, in natural units; a score it makes -inf is masked
  block_hook<Acc> slope_hook;  // its derivative, where a gradient is taken
  detail::band band;           // masks, composed by AND
  const bool* keep = nullptr;  // keep[i * keep_row + j * keep_col]; true: attend
  size keep_row = 0, keep_col = 0;
  block_mask_params blocks;
  block_hook<Acc> mask_hook;  // the user's mask: makes hidden scores -inf, whatever their units
  bool has_sink = false;
  Acc sink = 0;                 // joins the denominator, has no value
  block_hook<Acc> weight_hook;  // dropout: changes exp(s - max) after it has been summed
  bool final_weights = false;   // weight_hook, with a weight function, gets the weight itself, and
                                // -1 for what is hidden
  size b = 0, h = 0;            // which head of which sequence this is, for the hooks
  bool natural = false;  // kernels keep scores in natural units, as the gradient does: what it
                         // takes of them is then as exact as the formula

  bool capped() const { return softcap > 0; }
  /// With a slope that is 0 there is nothing to add.
  bool sloped() const { return alibi_slope != 0; }
  /// Whether scores are more than scaled dot products before a score function sees them.
  bool changes_scores() const { return relative_keys.data || capped() || bias || sloped(); }
  /// Whether one of the queries [i, i + ni) may not see one of the keys [j, j + nj), for another
  /// reason than mask_hook or blocks.
  bool may_hide(size i, size ni, size j, size nj) const {
    return !band.shows(i, ni, j, nj) || keep || bias || score_hook.run;
  }
  /// Whether mask_hook has a say in a block of the block mask that is in `state`.
  bool asks_mask_hook(block_state state) const {
    return mask_hook.run && !(state == block_state::whole && blocks.whole_needs_no_hook);
  }
  /// Whether hooks get whole blocks of scores, the pairs past the band too.
  bool hooks_see(bool asked_mask_hook) const {
    return score_hook.run || asked_mask_hook || weight_hook.run;
  }

  /// The same for scores whose keys are where queries were.
  score_params transposed() const {
    score_params t = *this;
    t.bias_row = bias_col, t.bias_col = bias_row;
    t.keep_row = keep_col, t.keep_col = keep_row;
    t.band.low = -band.high, t.band.high = -band.low;
    t.distance_offset = -distance_offset;
    return t;
  }
};

/// The key or value rows of one head as they are stored: anywhere in memory or in pages, in any
/// type, with or without a scale per row. Plans and kernels look at them through this.
template <typename Stored>
struct stored_rows {
  const Stored* data = nullptr;
  size rows = 0, cols = 0;
  size row = 0, col = 1;  // strides, in elements
  // In pages, row j is row (first + j) % page_rows of page pages[(first + j) / page_rows]; no data:
  // rows are one `row` apart.
  integers pages;
  size first = 0, page_rows = 1, page_stride = 0;
  const float* scales = nullptr;  // the factor of each row (where rows share it, scale_row is 0);
                                  // null: 1
  size scale_row = 0, scale_page_stride = 0;
  bool gather = false;  // a block of rows is copied before it is multiplied, though a kernel could
                        // read it in place
  const size* selected = nullptr;  // rows are selected[0], selected[1], ... of these; null: all

  const Stored* row_at(size j) const {
    if (selected) j = selected[j];
    if (!pages.data) return data + j * row;
    j += first;
    return data + pages[j / page_rows] * page_stride + j % page_rows * row;
  }
  /// The scale of row j; those of the rows of its run are scale_row apart.
  const float* scale_at(size j) const {
    if (selected) j = selected[j];
    if (!pages.data) return scales + j * scale_row;
    j += first;
    return scales + pages[j / page_rows] * scale_page_stride + j % page_rows * scale_row;
  }
  /// How many of the `most` rows from j on are one stride apart.
  size run_at(size j, size most) const {
    if (selected) return 1;
    if (!pages.data) return most;
    const size left = page_rows - (first + j) % page_rows;
    return left < most ? left : most;
  }
  /// Element c of row j as a number of type Acc.
  template <typename Acc>
  Acc at(size j, size c) const {
    constexpr size each = numbers_in<Stored>;
    if constexpr (each > 1) {
      return Acc(row_at(j)[c / each][c % each]);
    } else {
      const Acc element(row_at(j)[c * col]);
      return scales ? Acc(element * Acc(*scale_at(j))) : element;
    }
  }
};

/// One head of a forward call.
template <typename In, typename Stored, typename Acc>
struct forward_head {
  const In* query = nullptr;
  In* out = nullptr;
  Acc* lse = nullptr;      // natural log, one for each query row; null: not wanted
  Acc* largest = nullptr;  // score of each query row, side by side; null: not wanted
  stored_rows<Stored> key, value;
  score_params<Acc> score;
  size kv_head = 0;  // its number
};

/// Query rows [row_begin, row_end) of some heads against keys [0, n_kv). Strides count elements.
template <typename In, typename Stored, typename Acc>
struct forward_params {
  const forward_head<In, Stored, Acc>* heads = nullptr;
  size num_heads = 1;  // at most forward_heads_limit
  size query_row = 0, query_col = 1, out_row = 0, out_col = 1, lse_row = 1;
  size row_begin = 0, row_end = 0;
  size n_kv = 0, d_k = 0, d_v = 0;
  size query_blocks =
      1;  // blocks of queries that go through the keys together, at most forward_blocks_limit
  size kv_heads =
      1;  // key/value heads whose queries may go together; more than one: they are side by side
  void* scratch = nullptr;  // 64-byte aligned, of the bytes of a forward_layout
};

/// Keys whose scores are in scratch at a time.
constexpr size forward_block = 128;
constexpr size scratch_rows(size n_kv) { return n_kv < forward_block ? n_kv : forward_block; }

/// Pieces of scratch begin at a cache line.
constexpr size padded_bytes(size n) { return (n + 63) & ~size{63}; }

/// Rows of a copied block are padded to the widest vector of any instruction set.
constexpr size padded_row(size n) { return (n + 15) & ~size{15}; }

/// Blocks of queries, and heads, that go through the keys together at most.
constexpr size forward_blocks_limit = 48, forward_heads_limit = 8;

/// Lays out scratch, piece after piece, each from a cache line on; offsets are bytes.
class scratch_layout {
 public:
  size bytes() const { return bytes_; }

 protected:
  template <typename Element>
  size take(size count) {
    const size offset = bytes_;
    bytes_ += padded_bytes(count * static_cast<size>(sizeof(Element)));
    return offset;
  }

 private:
  size bytes_ = 0;
};
template <typename Element>
Element* scratch_at(void* scratch, size offset) {
  return reinterpret_cast<Element*>(static_cast<unsigned char*>(scratch) + offset);
}

/// A block of queries keeps a number for each of its lanes and each row of a table of relative
/// positions. Those of a lane begin one place after those of the lane before it, so what all lanes
/// have for one key is side by side, at one place. The first place and the last stand for all keys
/// that are as far away for every lane.
struct key_places {
  size first, last;

  template <typename Acc>
  static constexpr key_places of(const relative_rows<Acc>& table, size distance_offset, size i0,
                                 size width) {
    return {table.left - distance_offset - i0, table.count() + width - 1};
  }
  constexpr size at(size j) const {
    return j + first < 0 ? 0 : j + first > last ? last : j + first;
  }
};
/// Numbers at all of its places.
constexpr size size_of_places(size width, size table_rows) {
  return table_rows > 0 ? (table_rows + width) * width : 0;
}

/// Where the forward kernel, with blocks of `width` queries, keeps what: packed queries, sums of
/// values and what tables of so many rows take, of each block that goes together, the scores, which
/// pairs are seen, a part of the sums, and (with `copies`) a block of keys and of values.
template <typename Acc>
struct forward_layout : scratch_layout {
  size query_size, sums_size, products_size, bins_size;  // elements of one block of queries
  size queries, scores, seen, part, key_copy, value_copy;

  forward_layout(size width, size query_blocks, size d_k, size d_v, size n_kv, bool copies,
                 size relative_keys, size relative_values)
      : query_size(width * padded_row(d_k)),
        sums_size(width * padded_row(d_v)),
        products_size(size_of_places(width, relative_keys)),
        bins_size(size_of_places(width, relative_values)) {
    const size block = scratch_rows(n_kv), copied = copies ? block : 0;
    queries = take<Acc>(query_blocks * block_size());
    scores = take<Acc>(block * width);
    seen = take<bool>(block * width);
    part = take<Acc>(sums_size);
    key_copy = take<Acc>(copied * padded_row(d_k));
    value_copy = take<Acc>(copied * padded_row(d_v));
  }
  /// Elements of one block of queries, in this order.
  size block_size() const { return query_size + sums_size + products_size + bins_size; }
};

/// The forward kernel of one instruction set.
template <typename In, typename Stored, typename Acc>
struct forward_kernel {
  void (*run)(const forward_params<In, Stored, Acc>&) noexcept;
  size block_rows;  // queries that it takes at a time
};

}  // namespace detail
HEED_NAMESPACE_END

#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/params.hpp>
#include <heed/detail/sizes.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <utility>
#include <vector>

HEED_NAMESPACE_BEGIN

/// Which blocks of keys each block of queries may see: a sparse mask whose hidden blocks cost
/// nothing. Pass it to a call as blocks(mask), or, made of a mask function, together with it as
/// mask_function(function, mask).
///
/// The n_q x n_kv pairs are cut into blocks of block_q x block_kv (the last ones smaller), or where
/// lists of starts say; batch and heads are 1 (the same for all) or the call's.
///
/// @code
/// const std::vector<int> starts{0, 3, 4, 10};  // blocks of 3, 1 and 6 tokens
/// heed::block_mask mask(1, 1, starts, starts);
/// for (heed::size_type block = 0; block < 3; ++block) mask.show(0, 0, block, block);
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const auto out = heed::attention(x, x, x, {}, heed::blocks(mask));
/// @endcode
class block_mask {
 public:
  /// Every block hidden. Throws std::invalid_argument for negative sizes, blocks of less than 1,
  /// and more blocks than an index can count.
  block_mask(size_type batch, size_type heads, size_type n_q, size_type n_kv, size_type block_q,
             size_type block_kv)
      : batch_(batch), heads_(heads), queries_(n_q, block_q), keys_(n_kv, block_kv) {
    if (batch < 1 || heads < 1 || n_q < 0 || n_kv < 0 || block_q < 1 || block_kv < 1)
      detail::fail_with(
          "heed::block_mask: batch, heads, block_q and block_kv must be 1 or more and n_q and n_kv "
          "not negative, but are ",
          batch, ", ", heads, ", ", block_q, ", ", block_kv, ", ", n_q, ", ", n_kv);
    hide_all();
  }
  /// The same for blocks of different sizes: block q is queries [q_starts[q], q_starts[q + 1]),
  /// block kv is keys [kv_starts[kv], kv_starts[kv + 1]); the first entry is 0, the last n_q and
  /// n_kv. They are the same in all heads. A block may be empty. The lists are copied. Throws
  /// std::invalid_argument for starts that decrease too.
  block_mask(size_type batch, size_type heads, const index_list& q_starts,
             const index_list& kv_starts)
      : batch_(batch),
        heads_(heads),
        queries_("q_starts", q_starts),
        keys_("kv_starts", kv_starts) {
    if (batch < 1 || heads < 1)
      detail::fail_with("heed::block_mask: batch and heads must be 1 or more, but are ", batch,
                        ", ", heads);
    hide_all();
  }

  /// A copy has memory of its own.
  block_mask(const block_mask&) = default;
  /// A mask that was moved from is one of no queries and no keys.
  block_mask(block_mask&& other) noexcept
      : batch_(other.batch_),
        heads_(other.heads_),
        queries_(std::move(other.queries_)),
        keys_(std::move(other.keys_)),
        states_(std::move(other.states_)) {}
  /// A copy for which memory runs out changes nothing.
  block_mask& operator=(block_mask other) noexcept {
    std::swap(batch_, other.batch_);
    std::swap(heads_, other.heads_);
    std::swap(queries_, other.queries_);
    std::swap(keys_, other.keys_);
    std::swap(states_, other.states_);
    return *this;
  }

  /// The blocks in which mask(b, h, i, j) is true anywhere. Where it is true everywhere,
  /// mask_function(mask, blocks) does not evaluate it again; blocks(...) alone shows all pairs of a
  /// visible block, and a mask function beside it is evaluated in every visible block. `mask` is
  /// evaluated for each of the n_q x n_kv pairs: only a call knows which of them causal, window and
  /// lengths hide.
  template <typename Mask>
  static block_mask of(const Mask& mask, size_type batch, size_type heads, size_type n_q,
                       size_type n_kv, size_type block_q = 64, size_type block_kv = 64) {
    block_mask blocks(batch, heads, n_q, n_kv, block_q, block_kv);
    blocks.show_where(mask);
    return blocks;
  }
  /// The same for blocks that begin where the lists say.
  template <typename Mask>
  static block_mask of(const Mask& mask, size_type batch, size_type heads,
                       const index_list& q_starts, const index_list& kv_starts) {
    block_mask blocks(batch, heads, q_starts, kv_starts);
    blocks.show_where(mask);
    return blocks;
  }

  /// Lets query block q of head h of batch entry b see key block kv.
  void show(size_type b, size_type h, size_type q, size_type kv) {
    check_block("show", b, h, q, kv);
    state(b, h, q, kv) = block_state::partly;
  }
  /// Whether query block q of head h of batch entry b sees anything of key block kv.
  bool shows(size_type b, size_type h, size_type q, size_type kv) const {
    check_block("shows", b, h, q, kv);
    return states_[at(b, h, q, kv)] != block_state::hidden;
  }

  /// How many batch entries the mask has: 1 (the same for all) or the call's.
  size_type batch() const { return batch_; }
  /// How many heads the mask has: 1 (the same for all) or the call's.
  size_type heads() const { return heads_; }
  /// How many queries the mask is for.
  size_type n_q() const { return queries_.length; }
  /// How many keys the mask is for.
  size_type n_kv() const { return keys_.length; }
  /// How many blocks the queries make, the last of which may be short.
  size_type q_blocks() const { return queries_.blocks(); }
  /// How many blocks the keys make, the last of which may be short.
  size_type kv_blocks() const { return keys_.blocks(); }
  /// The share of blocks that are visible, and so of the time of the full call.
  double density() const {
    const auto shown = std::count_if(states_.begin(), states_.end(),
                                     [](block_state s) { return s != block_state::hidden; });
    return states_.empty() ? 0 : double(shown) / double(states_.size());
  }

  /// The blocks of one head, as the kernels read them.
  detail::block_mask_params params(size_type b, size_type h) const {
    return {states_.data() + at(batch_ == 1 ? 0 : b, heads_ == 1 ? 0 : h, 0, 0), kv_blocks(),
            queries_.cuts(), keys_.cuts()};
  }

 private:
  using block_state = detail::block_state;

  /// Queries or keys and their blocks: `each` rows in all but the last or, with starts, [starts[k],
  /// starts[k + 1]).
  struct axis {
    axis(size_type rows, size_type block)
        : length(rows),  // a block is at most everything, however large the given size
          each((std::min)(block, (std::max)(rows, size_type{1}))) {}
    axis(const char* what, const index_list& given) {
      const size_type parts = detail::check_ascending("block_mask", what, given);
      length = given[parts];
      detail::product("block_mask", what, {length, size_type{sizeof(size_type)}});
      for (const size_type start : given) starts.push_back(start);
      block_of.reserve(static_cast<std::size_t>(length));
      for (size_type k = 0; k < parts; ++k)
        block_of.insert(block_of.end(), static_cast<std::size_t>(end(k) - begin(k)), k);
    }
    axis(const axis&) = default;
    axis(axis&& other) noexcept
        : length(std::exchange(other.length, 0)),
          each(other.each),
          starts(std::move(other.starts)),
          block_of(std::move(other.block_of)) {}
    axis& operator=(axis&& other) = default;

    size_type blocks() const {
      if (!starts.empty()) return static_cast<size_type>(starts.size()) - 1;
      return length / each + (length % each != 0);
    }
    size_type begin(size_type k) const {
      return starts.empty() ? k * each : starts[static_cast<std::size_t>(k)];
    }
    size_type end(size_type k) const {
      return starts.empty() ? (std::min)(length - k * each, each) + k * each : begin(k + 1);
    }
    detail::block_cuts cuts() const {
      if (starts.empty()) return {each, nullptr, nullptr};
      return {1, block_of.data(), starts.data()};
    }

    size_type length = 0, each = 1;
    std::vector<size_type> starts, block_of;
  };

  void hide_all() {
    states_.assign(static_cast<std::size_t>(detail::product(
                       "block_mask", "batch * heads * blocks of queries * blocks of keys",
                       {batch_, heads_, q_blocks(), kv_blocks()})),
                   block_state::hidden);
  }
  template <typename Mask>
  void show_where(const Mask& mask) {
    for (size_type b = 0; b < batch_; ++b)
      for (size_type h = 0; h < heads_; ++h)
        for (size_type q = 0; q < q_blocks(); ++q)
          for (size_type kv = 0; kv < kv_blocks(); ++kv) {
            size_type seen = 0, all = 0;
            for (size_type i = queries_.begin(q); i < queries_.end(q); ++i)
              for (size_type j = keys_.begin(kv); j < keys_.end(kv); ++j, ++all)
                seen += mask(b, h, i, j) ? 1 : 0;
            state(b, h, q, kv) = seen == 0     ? block_state::hidden
                                 : seen == all ? block_state::whole
                                               : block_state::partly;
          }
  }
  void check_block(const char* function, size_type b, size_type h, size_type q,
                   size_type kv) const {
    if (b < 0 || b >= batch_ || h < 0 || h >= heads_ || q < 0 || q >= q_blocks() || kv < 0 ||
        kv >= kv_blocks())
      detail::fail_with("heed::block_mask::", function, ": block [", b, ", ", h, ", ", q, ", ", kv,
                        "] is not in [", batch_, ", ", heads_, ", ", q_blocks(), ", ", kv_blocks(),
                        "]");
  }
  std::size_t at(size_type b, size_type h, size_type q, size_type kv) const {
    return static_cast<std::size_t>(((b * heads_ + h) * q_blocks() + q) * kv_blocks() + kv);
  }
  block_state& state(size_type b, size_type h, size_type q, size_type kv) {
    return states_[at(b, h, q, kv)];
  }

  size_type batch_, heads_;
  axis queries_, keys_;
  std::vector<block_state> states_;
};

HEED_NAMESPACE_END

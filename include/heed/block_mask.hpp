#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/params.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <utility>
#include <vector>

HEED_NAMESPACE_BEGIN

/// Which blocks of keys each block of queries may see: a sparse mask whose hidden blocks cost
/// nothing. Pass it to a call as blocks(mask), or, made of a mask function, together with it as
/// mask_function(function, mask).
///
/// The n_q x n_kv pairs are cut into blocks of block_q x block_kv (the last ones smaller); batch
/// and heads are 1 (the same for all) or the call's.
class block_mask {
 public:
  /// Every block hidden. Throws std::invalid_argument for negative sizes, blocks of less than 1,
  /// and more blocks than an index can count.
  block_mask(size_type batch, size_type heads, size_type n_q, size_type n_kv, size_type block_q,
             size_type block_kv)
      : batch_(batch),
        heads_(heads),
        n_q_(n_q),
        n_kv_(n_kv),
        block_q_(block_q),
        block_kv_(block_kv) {
    if (batch < 1 || heads < 1 || n_q < 0 || n_kv < 0 || block_q < 1 || block_kv < 1)
      detail::fail_with(
          "heed::block_mask: batch, heads, block_q and block_kv must be 1 or more and n_q and n_kv "
          "not negative, but are ",
          batch, ", ", heads, ", ", block_q, ", ", block_kv, ", ", n_q, ", ", n_kv);
    block_q_ = (std::min)(
        block_q,
        (std::max)(n_q,
                   size_type{1}));  // one block is at most everything, however large the given size
    block_kv_ = (std::min)(block_kv, (std::max)(n_kv, size_type{1}));
    states_.assign(static_cast<std::size_t>(detail::product(
                       "block_mask", "batch * heads * blocks of queries * blocks of keys",
                       {batch, heads, q_blocks(), kv_blocks()})),
                   block_state::hidden);
  }

  /// A copy has memory of its own.
  block_mask(const block_mask&) = default;
  /// A mask that was moved from is one of no queries and no keys.
  block_mask(block_mask&& other) noexcept
      : batch_(other.batch_),
        heads_(other.heads_),
        n_q_(std::exchange(other.n_q_, 0)),
        n_kv_(std::exchange(other.n_kv_, 0)),
        block_q_(other.block_q_),
        block_kv_(other.block_kv_),
        states_(std::move(other.states_)) {}
  /// A copy for which memory runs out changes nothing.
  block_mask& operator=(block_mask other) noexcept {
    std::swap(batch_, other.batch_);
    std::swap(heads_, other.heads_);
    std::swap(n_q_, other.n_q_);
    std::swap(n_kv_, other.n_kv_);
    std::swap(block_q_, other.block_q_);
    std::swap(block_kv_, other.block_kv_);
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
    for (size_type b = 0; b < batch; ++b)
      for (size_type h = 0; h < heads; ++h)
        for (size_type q = 0; q < blocks.q_blocks(); ++q)
          for (size_type kv = 0; kv < blocks.kv_blocks(); ++kv) {
            size_type seen = 0, all = 0;
            for (size_type i = q * block_q; i < (std::min)((q + 1) * block_q, n_q); ++i)
              for (size_type j = kv * block_kv; j < (std::min)((kv + 1) * block_kv, n_kv);
                   ++j, ++all)
                seen += mask(b, h, i, j) ? 1 : 0;
            blocks.state(b, h, q, kv) = seen == 0     ? block_state::hidden
                                        : seen == all ? block_state::whole
                                                      : block_state::partly;
          }
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
  size_type n_q() const { return n_q_; }
  /// How many keys the mask is for.
  size_type n_kv() const { return n_kv_; }
  /// How many blocks the queries make, the last of which may be short.
  size_type q_blocks() const { return n_q_ / block_q_ + (n_q_ % block_q_ != 0); }
  /// How many blocks the keys make, the last of which may be short.
  size_type kv_blocks() const { return n_kv_ / block_kv_ + (n_kv_ % block_kv_ != 0); }
  /// The share of blocks that are visible, and so of the time of the full call.
  double density() const {
    const auto shown = std::count_if(states_.begin(), states_.end(),
                                     [](block_state s) { return s != block_state::hidden; });
    return states_.empty() ? 0 : double(shown) / double(states_.size());
  }

  /// The blocks of one head, as the kernels read them.
  detail::block_mask_params params(size_type b, size_type h) const {
    return {states_.data() + at(batch_ == 1 ? 0 : b, heads_ == 1 ? 0 : h, 0, 0), kv_blocks(),
            block_q_, block_kv_};
  }

 private:
  using block_state = detail::block_state;

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

  size_type batch_, heads_, n_q_, n_kv_, block_q_, block_kv_;
  std::vector<block_state> states_;
};

HEED_NAMESPACE_END

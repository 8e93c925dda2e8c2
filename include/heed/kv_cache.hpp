#pragma once

#include <heed/cached_attention.hpp>  // what a cache is for
#include <heed/detail/cache_rows.hpp>
#include <heed/detail/check.hpp>
#include <heed/detail/check_cache.hpp>
#include <heed/detail/overlap.hpp>
#include <heed/detail/params.hpp>
#include <heed/detail/storage.hpp>
#include <heed/detail/stored.hpp>
#include <heed/float8.hpp>
#include <heed/kv_cache_bytes.hpp>
#include <heed/quantised.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

HEED_NAMESPACE_BEGIN

/// The keys and values that a decoder has seen, for a batch of sequences of one layer: each
/// key/value head of each sequence is contiguous.
///
/// Stored is float, double, Eigen::bfloat16, Eigen::half; std::int8_t with one float scale per row
/// (scale = max |row| / 127; a row with an infinity or NaN in it is NaN throughout); int8_block or
/// int4_block, with a scale for each 32 numbers of a row; float8_e4m3 or float8_e5m2, with the
/// scale of the head (numbers beyond its reach saturate, an infinity becomes NaN). With a window
/// the cache keeps only the tokens that a later query can see: the `window` tokens before the
/// newest append; with keep_first also as many of the first, and then a call sees all that the
/// cache holds, as if it were the sequence: causal, windows, ALiBi, functions and dropout count
/// positions within the cache, and the newest token's is length(b) - 1. Sequences may have
/// different lengths. Grows by doubling; appending within the capacity allocates nothing, except
/// that a rolling cache grows once to twice its window rather than move all of it at each token. A
/// call that throws changes nothing. Invariant: sequence b holds rows [first_[b], first_[b] +
/// lengths_[b]) of its part of the storage: in order, the first keep_first_ of its tokens, then
/// those from dropped_[b] + keep_first_ on.
///
/// @code
/// heed::kv_cache<Eigen::bfloat16> cache(1, 2, 64, 64);  // one sequence, 2 key/value heads of 64
/// std::vector<float> key(2 * 5 * 64, 0.5f), value(key);
/// cache.append(heed::bhnd(key.data(), 1, 2, 5, 64), heed::bhnd(value.data(), 1, 2, 5, 64));
/// assert(cache.length(0) == 5);
/// @endcode
template <typename Stored>
class kv_cache {
 public:
  /// head_dim of keys and values; capacity is the number of tokens to reserve for each sequence;
  /// window is that of attention_options::window_left. With keep_first the cache keeps that many of
  /// the first tokens too (Xiao et al. 2024, StreamingLLM). scales
  /// are for 8-bit floats alone.
  kv_cache(size_type batch, size_type num_kv_heads, size_type key_dim, size_type value_dim,
           size_type capacity = 64, size_type window = -1, size_type keep_first = 0,
           const head_scales& scales = {})
      : key_(batch, num_kv_heads, key_dim),
        value_(batch, num_kv_heads, value_dim),
        window_(window),
        keep_first_(keep_first) {
    if (batch < 0 || num_kv_heads < 0 || key_dim < 0 || value_dim < 0 || capacity < 0)
      detail::fail_with("heed::kv_cache: sizes must not be negative, but are batch ", batch,
                        ", num_kv_heads ", num_kv_heads, ", key_dim ", key_dim, ", value_dim ",
                        value_dim, ", capacity ", capacity);
    if (window < -1)
      detail::fail_with("heed::kv_cache: window must be -1 (unbounded) or more, but is ", window);
    if (keep_first < 0 || keep_first > detail::unbounded || window > detail::unbounded)
      detail::fail_with("heed::kv_cache: keep_first must be 0 or more, and it and window at most ",
                        detail::unbounded, ", but are keep_first ", keep_first, ", window ",
                        window);
    detail::check_storage("kv_cache",
                          {batch, num_kv_heads, capacity, (std::max)(key_dim, value_dim)});
    first_.assign(static_cast<std::size_t>(batch), 0);
    lengths_.assign(static_cast<std::size_t>(batch), 0);
    dropped_.assign(static_cast<std::size_t>(batch), 0);
    key_.scales =
        detail::scales_of<Stored>("kv_cache", "head_scales: key", scales.key, num_kv_heads);
    value_.scales =
        detail::scales_of<Stored>("kv_cache", "head_scales: value", scales.value, num_kv_heads);
    grow("kv_cache", capacity);
  }
  /// A copy of all its sequences.
  kv_cache(const kv_cache&) = default;
  /// A cache that was moved from has no sequences.
  kv_cache(kv_cache&& other) noexcept
      : key_(std::move(other.key_)),
        value_(std::move(other.value_)),
        window_(other.window_),
        keep_first_(other.keep_first_),
        capacity_(std::exchange(other.capacity_, 0)),
        first_(std::move(other.first_)),
        lengths_(std::move(other.lengths_)),
        dropped_(std::move(other.dropped_)) {
    other.key_.batch = other.value_.batch = 0;
  }
  /// A copy for which memory runs out changes nothing.
  kv_cache& operator=(kv_cache other) noexcept {
    std::swap(key_, other.key_);
    std::swap(value_, other.value_);
    std::swap(window_, other.window_);
    std::swap(keep_first_, other.keep_first_);
    std::swap(capacity_, other.capacity_);
    std::swap(first_, other.first_);
    std::swap(lengths_, other.lengths_);
    std::swap(dropped_, other.dropped_);
    return *this;
  }

  /// How many sequences the cache holds.
  size_type batch() const { return static_cast<size_type>(lengths_.size()); }
  /// How many key/value heads each sequence has.
  size_type num_kv_heads() const { return key_.heads; }
  /// How many tokens before its own a later query may look back to; -1: all that the cache holds,
  /// as where it keeps the first tokens.
  size_type window() const { return keep_first_ > 0 ? -1 : window_; }
  /// How many of the first tokens the cache keeps, whatever the window.
  size_type keep_first() const { return keep_first_; }
  /// How many tokens of each sequence there is room for.
  size_type capacity() const { return capacity_; }
  /// Tokens that sequence b holds now.
  size_type length(size_type b) const {
    check_sequence("length", b);
    return lengths_[static_cast<std::size_t>(b)];
  }
  /// Tokens ever appended to sequence b, less those truncated: the position of its next token.
  size_type position(size_type b) const {
    check_sequence("position", b);
    return dropped_[static_cast<std::size_t>(b)] + lengths_[static_cast<std::size_t>(b)];
  }
  /// The length of each sequence.
  const std::vector<size_type>& lengths() const { return lengths_; }
  /// Tokens that each sequence has dropped from its beginning, as a rolling cache does.
  const std::vector<size_type>& dropped() const { return dropped_; }
  /// Bytes of keys, values and scales that are reserved.
  size_type bytes() const { return key_.bytes() + value_.bytes(); }

  /// Makes room for `capacity` tokens in each sequence; a smaller capacity than now changes
  /// nothing. Throws std::invalid_argument for a negative capacity, or one whose size in bytes an
  /// index cannot hold.
  void reserve(size_type capacity) {
    if (capacity < 0)
      detail::fail_with("heed::kv_cache::reserve: capacity must not be negative, but is ",
                        capacity);
    grow("kv_cache::reserve", capacity);
  }

  /// Appends n tokens to every sequence: key [batch, H_kv, n, key_dim], value [batch, H_kv, n,
  /// value_dim], neither of them in the cache's own memory.
  template <typename Key, typename Value>
  void append(const tensor_view<Key>& key, const tensor_view<Value>& value) {
    detail::check_equal("kv_cache::append", "key: batch", key.batch, "the cache's batch", batch());
    check_tokens(key, value);
    make_room(0, batch(), key.rows);
    for (size_type b = 0; b < batch(); ++b) append_entry(b, b, key, value);
  }

  /// Appends n tokens to sequence b alone: key [1, H_kv, n, key_dim], value [1, H_kv, n,
  /// value_dim].
  template <typename Key, typename Value>
  void append(size_type b, const tensor_view<Key>& key, const tensor_view<Value>& value) {
    check_sequence("append", b);
    detail::check_equal("kv_cache::append", "key: batch", key.batch, "one sequence:", size_type{1});
    check_tokens(key, value);
    make_room(b, b + 1, key.rows);
    append_entry(b, 0, key, value);
  }

  /// Forgets all but the first `length` of the tokens that sequence b holds. Where a rolling cache
  /// has dropped earlier ones, at least its window must stay: the next token sees as far back.
  void truncate(size_type b, size_type length) {
    check_sequence("truncate", b);
    const std::size_t s = static_cast<std::size_t>(b);
    if (length < 0 || length > lengths_[s])
      detail::fail_with("heed::kv_cache::truncate: length ", length, " is not in [0, ", lengths_[s],
                        "], the tokens of sequence ", b);
    if (dropped_[s] > 0 && length < keep_first_ + window_)
      detail::fail_with("heed::kv_cache::truncate: length ", length, " is less than the window ",
                        keep_first_ + window_, " of the next token, and sequence ", b,
                        " has dropped the ", dropped_[s], " tokens before; clear(", b,
                        ") empties it");
    lengths_[s] = length;
  }

  /// Empties sequence b; keeps the memory.
  void clear(size_type b) {
    check_sequence("clear", b);
    const std::size_t s = static_cast<std::size_t>(b);
    first_[s] = lengths_[s] = dropped_[s] = 0;
  }
  /// Empties every sequence; keeps the memory.
  void clear() {
    for (size_type b = 0; b < batch(); ++b) clear(b);
  }

  /// The keys, as the library's own functions read them.
  detail::stored_tensor<Stored> keys() const { return view(key_); }
  /// The values, likewise.
  detail::stored_tensor<Stored> values() const { return view(value_); }

  /// Some entries as the batch of calls of cached_attention_into: batch entry b is entries[b], and
  /// one may be there more than once. Looks at the cache and at the caller's list, as they are at
  /// each call, and owns neither.
  class batch_view {
   public:
    /// The entries of a cache, which must outlive the view. Throws std::invalid_argument for one
    /// that the cache does not have.
    batch_view(const kv_cache& cache, const index_list& entries)
        : cache_(cache), entries_(entries) {
      detail::check_list("kv_cache::batch", "entries", entries);
      check_entries();
    }
    /// How many tokens before its own a later query may look back to; -1: all.
    size_type window() const { return cache_.window(); }
    /// The keys, as the library's own functions read them.
    detail::stored_tensor<Stored> keys() const { return chosen(cache_.key_); }
    /// The values, likewise.
    detail::stored_tensor<Stored> values() const { return chosen(cache_.value_); }

   private:
    void check_entries() const {
      for (const size_type b : entries_) cache_.check_sequence("batch", b);
    }
    template <typename Part>
    detail::stored_tensor<Stored> chosen(const Part& part) const {
      check_entries();  // the list, or the cache, may have changed since
      detail::stored_tensor<Stored> some = cache_.view(part);
      some.batch = entries_.size;
      some.sequences = entries_;
      some.rows = 0;
      for (size_type b = 0; b < some.batch; ++b) some.rows = (std::max)(some.rows, some.length(b));
      return some;
    }
    const kv_cache& cache_;
    index_list entries_;
  };
  /// These entries as the batch of one call.
  ///
  /// @code
  /// heed::kv_cache<float> cache(4, 2, 64, 64);  // room for four sequences
  /// std::vector<float> tokens(4 * 2 * 3 * 64, 0.5f), query(2 * 8 * 64, 0.1f), out(query.size());
  /// cache.append(heed::bhnd(tokens.data(), 4, 2, 3, 64), heed::bhnd(tokens.data(), 4, 2, 3, 64));
  /// const std::vector<int> live{3, 1};  // the first query is of sequence 3
  /// heed::workspace memory;
  /// heed::cached_attention_into(heed::bhnd(query.data(), 2, 8, 1, 64), cache.batch(live),
  ///                             heed::bhnd(out.data(), 2, 8, 1, 64), {}, {}, memory);
  /// @endcode
  batch_view batch(const index_list& entries) const { return batch_view(*this, entries); }

 private:
  using storage = detail::cache_rows<Stored>;

  detail::stored_tensor<Stored> view(const storage& part) const {
    size_type longest = 0;
    for (const size_type length : lengths_) longest = (std::max)(longest, length);
    detail::stored_tensor<Stored> rows(part.rows(capacity_), part.row_scales(capacity_), part.batch,
                                       longest);
    rows.cols = part.dim;
    rows.first_rows = first_.data();
    rows.lengths = lengths_;
    if (keep_first_ == 0) rows.dropped = dropped_.data();
    return rows;
  }

  void grow(const char* function, size_type capacity) {
    if (capacity <= capacity_) return;
    for (const storage* part : {&key_, &value_})
      detail::check_storage(function, {part->batch, part->heads, capacity, part->dim});
    storage key = key_.grown(capacity_, capacity), value = value_.grown(capacity_, capacity);
    key_ = std::move(key);
    value_ = std::move(value);
    capacity_ = capacity;
  }
  /// Tokens of sequence s that the next append keeps: no later query looks further back.
  size_type kept(std::size_t s) const {
    return window_ >= 0 ? (std::min)(lengths_[s], keep_first_ + window_) : lengths_[s];
  }
  /// All that an append of n tokens to sequences [begin, end) has to allocate, before it changes
  /// anything.
  void make_room(size_type begin, size_type end, size_type n) {
    size_type capacity = 0;
    for (size_type b = begin; b < end; ++b) {
      const std::size_t s = static_cast<std::size_t>(b);
      if (first_[s] + lengths_[s] + n <= capacity_) continue;
      const size_type needed = kept(s) + n;
      capacity = (std::max)(capacity,
                            needed > capacity_ ? (std::max)(needed, 2 * capacity_) : 2 * kept(s));
    }
    grow("kv_cache::append", capacity);
  }
  void check_sequence(const char* function, size_type b) const {
    if (b < 0 || b >= batch())
      detail::fail_with("heed::kv_cache::", function, ": there is no sequence ", b,
                        " in a batch of ", batch());
  }
  template <typename Key, typename Value>
  void check_tokens(const tensor_view<Key>& key, const tensor_view<Value>& value) const {
    detail::check_tokens("kv_cache::append", key, value, key_.heads, key_.dim, value_.dim);
    const detail::memory_region own_keys = detail::region_of(keys().elements),
                                own_values = detail::region_of(values().elements);
    for (const detail::named_region& tokens :
         {detail::named_region("key", key), detail::named_region("value", value)}) {
      detail::check_pair("kv_cache::append", tokens, "the cache's own keys", own_keys);
      detail::check_pair("kv_cache::append", tokens, "the cache's own values", own_values);
    }
  }

  template <typename Key, typename Value>
  void append_entry(size_type b, size_type entry, const tensor_view<Key>& key,
                    const tensor_view<Value>& value) {
    const std::size_t s = static_cast<std::size_t>(b);
    const size_type past = lengths_[s] - kept(s), needed = kept(s) + key.rows;
    if (past > 0) move_rows(s, first_[s], first_[s] + past, keep_first_);
    first_[s] += past;
    dropped_[s] += past;
    lengths_[s] -= past;
    if (first_[s] + needed > capacity_) {  // of capacity 2 window, once in `window` tokens
      move_rows(s, first_[s], 0, lengths_[s]);
      first_[s] = 0;
    }
    store(key_, b, entry, first_[s] + lengths_[s], key);
    store(value_, b, entry, first_[s] + lengths_[s], value);
    lengths_[s] = needed;
  }
  /// Moves `count` rows of sequence s within its storage.
  void move_rows(std::size_t s, size_type from, size_type to, size_type count) {
    const auto move_rows_of = [&](auto& rows, size_type heads, size_type row) {
      for (size_type h = 0; h < heads; ++h) {
        auto* const head = rows.data() + (static_cast<size_type>(s) * heads + h) * capacity_ * row;
        auto *const begin = head + from * row, *const end = begin + count * row;
        if (to < from)
          std::copy(begin, end, head + to * row);
        else
          std::copy_backward(begin, end, head + (to + count) * row);
      }
    };
    for (storage* part : {&key_, &value_}) {
      move_rows_of(part->elements, part->heads, part->width);
      if (storage::scales_grow) move_rows_of(part->scales, part->heads, 1);
    }
  }
  template <typename Scalar>
  void store(storage& part, size_type b, size_type entry, size_type first,
             const tensor_view<Scalar>& tokens) {
    for (size_type h = 0; h < part.heads; ++h) {
      const matrix_view<const std::remove_const_t<Scalar>> from =
          tensor_view<const std::remove_const_t<Scalar>>(tokens).head(entry, h, 0, tokens.rows);
      const matrix_view<Stored> to = part.rows(capacity_).head(b, h, first, tokens.rows);
      const tensor_view<float> scales = part.row_scales(capacity_);
      for (size_type i = 0; i < tokens.rows; ++i)
        detail::storage_traits<Stored>::store_row(
            from, to, scales.data ? &scales(b, h, first + i, 0) : nullptr, i);
    }
  }

  storage key_, value_;
  size_type window_, keep_first_, capacity_ = 0;
  std::vector<size_type> first_, lengths_, dropped_;
};

HEED_NAMESPACE_END

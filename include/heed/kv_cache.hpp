#pragma once

#include <heed/cached_attention.hpp>  // what a cache is for
#include <heed/detail/check.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/overlap.hpp>
#include <heed/detail/params.hpp>
#include <heed/detail/storage.hpp>
#include <heed/detail/stored.hpp>
#include <heed/float8.hpp>
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

/// The bytes that the keys and values of one sequence take: 2 * layers * num_kv_heads * head_dim *
/// length * bytes_per_element. Throws std::invalid_argument for negative numbers and for a product
/// that an index cannot hold.
///
/// @code
/// static_assert(heed::kv_cache_bytes(32, 8, 128, 8192, 2) == heed::size_type{1} << 30,
///               "Llama 3.1 8B, 8K tokens, bfloat16");
/// @endcode
constexpr size_type kv_cache_bytes(size_type layers, size_type num_kv_heads, size_type head_dim,
                                   size_type length, size_type bytes_per_element) {
  if (layers < 0 || num_kv_heads < 0 || head_dim < 0 || length < 0 || bytes_per_element < 0)
    detail::fail_with("heed::kv_cache_bytes: numbers must not be negative, but are layers ", layers,
                      ", num_kv_heads ", num_kv_heads, ", head_dim ", head_dim, ", length ", length,
                      ", bytes_per_element ", bytes_per_element);
  return detail::product("kv_cache_bytes",
                         "2 * layers * num_kv_heads * head_dim * length * bytes_per_element",
                         {2, layers, num_kv_heads, head_dim, length, bytes_per_element});
}

/// The scale of each key/value head's keys and of its values, for caches of 8-bit floats: what is
/// stored is the number divided by it. Empty: 1 for every head. The largest magnitude that a head
/// has in some texts, divided by the type's largest number, uses the type's range.
struct head_scales {
  std::vector<float> key;    ///< num_kv_heads positive numbers, or none
  std::vector<float> value;  ///< likewise
};

namespace detail {
/// Given scales are one for each head, positive and finite; returns them, or 1 for each.
template <typename Stored>
std::vector<float> scales_of(const char* function, const char* what,
                             const std::vector<float>& given, size_type heads) {
  constexpr bool takes_scales = storage_traits<Stored>::scales == scale_of::head;
  if (given.empty())
    return std::vector<float>(static_cast<std::size_t>(takes_scales ? heads : 0), 1.0f);
  if (!takes_scales)
    fail_with("heed::", function, ": ", what, ": only caches of 8-bit floats have a scale a head");
  check_equal(function, what, static_cast<size_type>(given.size()), "num_kv_heads", heads);
  for (const float scale : given)
    if (!is_finite(scale) || scale < (std::numeric_limits<float>::min)())
      fail_with("heed::", function, ": ", what,
                ": a scale must be a positive normal number, but is ", scale);
  return given;
}
/// A cache of these extents must have a countable size; its largest list takes 8 bytes an element.
inline void check_storage(const char* function, const std::array<size_type, 4>& extents) {
  const auto some = [&](std::size_t axis) { return (std::max)(extents[axis], size_type{1}); };
  product(function, "size in bytes", {some(0), some(1), some(2), some(3), 8});
}
/// Tokens to append must be those of a cache of num_kv_heads heads.
template <typename Key, typename Value>
void check_tokens(const char* function, const tensor_view<Key>& key,
                  const tensor_view<Value>& value, size_type num_kv_heads, size_type key_dim,
                  size_type value_dim) {
  check_view(function, "key", key);
  check_view(function, "value", value);
  check_equal(function, "value: batch", value.batch, "key's batch", key.batch);
  check_equal(function, "key: num_kv_heads", key.heads, "the cache's num_kv_heads", num_kv_heads);
  check_equal(function, "value: num_kv_heads", value.heads, "the cache's num_kv_heads",
              num_kv_heads);
  check_equal(function, "value: tokens", value.rows, "key's tokens", key.rows);
  check_equal(function, "key: head_dim", key.cols, "the cache's key_dim", key_dim);
  check_equal(function, "value: head_dim", value.cols, "the cache's value_dim", value_dim);
  if (key.rows > unbounded)
    fail_with("heed::", function, ": key: ", key.rows, " tokens are more than a cache can count, ",
              unbounded);
}
}  // namespace detail

/// The keys and values that a decoder has seen, for a batch of sequences of one layer: each
/// key/value head of each sequence is contiguous.
///
/// Stored is float, double, Eigen::bfloat16, Eigen::half; std::int8_t with one float scale per row
/// (scale = max |row| / 127; a row with an infinity or NaN in it is NaN throughout); int8_block or
/// int4_block, with a scale for each 32 numbers of a row; float8_e4m3 or float8_e5m2, with the
/// scale of the head (numbers beyond its reach saturate, an infinity becomes NaN). With a window
/// the cache keeps only the tokens that a later query can see: the `window` tokens before the
/// newest append. Sequences may have different lengths. Grows by doubling; appending within the
/// capacity allocates nothing, except that a rolling cache grows once to twice its window rather
/// than move all of it at each token. A call that throws changes nothing. Invariant: sequence b
/// holds rows [first_[b], first_[b] + lengths_[b]) of its part of the storage: in order, its tokens
/// from dropped_[b] on.
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
  /// window is that of attention_options::window_left; scales are for 8-bit floats alone.
  kv_cache(size_type batch, size_type num_kv_heads, size_type key_dim, size_type value_dim,
           size_type capacity = 64, size_type window = -1, const head_scales& scales = {})
      : key_(batch, num_kv_heads, key_dim),
        value_(batch, num_kv_heads, value_dim),
        window_(window) {
    if (batch < 0 || num_kv_heads < 0 || key_dim < 0 || value_dim < 0 || capacity < 0)
      detail::fail_with("heed::kv_cache: sizes must not be negative, but are batch ", batch,
                        ", num_kv_heads ", num_kv_heads, ", key_dim ", key_dim, ", value_dim ",
                        value_dim, ", capacity ", capacity);
    if (window < -1)
      detail::fail_with("heed::kv_cache: window must be -1 (unbounded) or more, but is ", window);
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
  /// How many tokens before its own a later query may look back to; -1: all.
  size_type window() const { return window_; }
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
    if (dropped_[s] > 0 && length < window_)
      detail::fail_with("heed::kv_cache::truncate: length ", length, " is less than the window ",
                        window_, " of the next token, and sequence ", b, " has dropped the ",
                        dropped_[s], " tokens before; clear(", b, ") empties it");
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
  detail::stored_tensor<Stored> keys() const { return key_.view(*this); }
  /// The values, likewise.
  detail::stored_tensor<Stored> values() const { return value_.view(*this); }

 private:
  /// Keys or values: [batch, heads, capacity, dim], in as many elements a row as hold dim numbers,
  /// and their scales.
  struct storage {
    storage(size_type batch_size, size_type num_heads, size_type row_dim)
        : batch(batch_size),
          heads(num_heads),
          dim(row_dim),
          width(detail::elements_of<Stored>(row_dim)) {}

    size_type bytes() const {
      return static_cast<size_type>(elements.size() * sizeof(Stored) +
                                    scales.size() * sizeof(float));
    }
    tensor_view<Stored> rows(size_type capacity) {
      return bhnd(elements.data(), batch, heads, capacity, width);
    }
    tensor_view<float> row_scales(size_type capacity) {
      return detail::view_scales<Stored>(scales.data(), batch, heads, capacity);
    }

    storage grown(size_type from, size_type to) const {
      storage larger(batch, heads, dim);
      larger.elements = grown_rows(elements, from, to, width);
      larger.scales = scales_grow ? grown_rows(scales, from, to, 1) : scales;
      return larger;
    }
    template <typename Element>
    std::vector<Element> grown_rows(const std::vector<Element>& rows, size_type from, size_type to,
                                    size_type row) const {
      std::vector<Element> grown(static_cast<std::size_t>(batch * heads * to * row));
      for (size_type head = 0; head < batch * heads; ++head)
        std::copy(rows.data() + head * from * row, rows.data() + (head + 1) * from * row,
                  grown.data() + head * to * row);
      return grown;
    }
    detail::stored_tensor<Stored> view(const kv_cache& cache) const {
      const size_type capacity = cache.capacity_;
      size_type longest = 0;
      for (const size_type length : cache.lengths_) longest = (std::max)(longest, length);
      detail::stored_tensor<Stored> view(
          bhnd(elements.data(), batch, heads, capacity, width),
          detail::view_scales<Stored>(scales.data(), batch, heads, capacity), batch, longest);
      view.cols = dim;
      view.first_rows = cache.first_.data();
      view.lengths = cache.lengths_.data();
      view.dropped = cache.dropped_.data();
      return view;
    }

    static constexpr bool scales_grow =
        detail::storage_traits<Stored>::scales == detail::scale_of::row;
    size_type batch, heads, dim, width;
    std::vector<Stored> elements;
    std::vector<float> scales;
  };

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
    return window_ >= 0 ? (std::min)(lengths_[s], window_) : lengths_[s];
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
    first_[s] += past;
    dropped_[s] += past;
    lengths_[s] -= past;
    if (first_[s] + needed > capacity_) to_front(s);
    store(key_, b, entry, first_[s] + lengths_[s], key);
    store(value_, b, entry, first_[s] + lengths_[s], value);
    lengths_[s] = needed;
  }
  /// Moves the tokens of sequence s to the front of its storage. A rolling cache of capacity 2
  /// window does so once in `window` tokens.
  void to_front(std::size_t s) {
    const auto move_rows_of = [&](auto& rows, size_type heads, size_type row) {
      for (size_type h = 0; h < heads; ++h) {
        auto* head = rows.data() + (static_cast<size_type>(s) * heads + h) * capacity_ * row;
        std::copy(head + first_[s] * row, head + (first_[s] + lengths_[s]) * row, head);
      }
    };
    for (storage* part : {&key_, &value_}) {
      move_rows_of(part->elements, part->heads, part->width);
      if (storage::scales_grow) move_rows_of(part->scales, part->heads, 1);
    }
    first_[s] = 0;
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
  size_type window_, capacity_ = 0;
  std::vector<size_type> first_, lengths_, dropped_;
};

HEED_NAMESPACE_END

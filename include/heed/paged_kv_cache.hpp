#pragma once

#include <heed/kv_cache.hpp>

#include <algorithm>
#include <utility>
#include <vector>

HEED_NAMESPACE_BEGIN

/// A cache in pages: sequences come and go, each holds a table of pages from one pool, and
/// sequences that begin alike share the pages of their common prefix (Kwon et al. 2023). Stored is
/// as for kv_cache. Invariant: a page belongs to as many sequences as its count says; a page that
/// more than one holds is never written. A call that throws changes nothing. Appending allocates
/// nothing where the table of the sequence has room (see reserve).
///
/// @code
/// heed::paged_kv_cache<float> cache(16, 4, 2, 64,
///                                   64);  // 16 pages of 4 tokens; 2 key/value heads of 64
/// std::vector<float> prompt(2 * 5 * 64, 0.5f), query(2 * 8 * 64, 0.1f), out(query.size());
/// const heed::size_type first = cache.add_sequence();
/// cache.append(first, heed::bhnd(prompt.data(), 1, 2, 5, 64),
///              heed::bhnd(prompt.data(), 1, 2, 5, 64));
/// const std::vector<heed::size_type> both{first, cache.fork(first)};  // the two share their pages
/// assert(cache.free_pages() == 14);
/// heed::workspace memory;
/// heed::cached_attention_into(heed::bhnd(query.data(), 2, 8, 1, 64), cache.batch(both),
///                             heed::bhnd(out.data(), 2, 8, 1, 64), {}, heed::attention_options(),
///                             memory);
/// @endcode
template <typename Stored>
class paged_kv_cache {
 public:
  /// A pool of num_pages pages of page_rows tokens each; scales are for 8-bit floats alone.
  paged_kv_cache(size_type num_pages, size_type page_rows, size_type num_kv_heads,
                 size_type key_dim, size_type value_dim, const head_scales& scales = {})
      : page_rows_(page_rows),
        key_{num_pages, page_rows, num_kv_heads, key_dim, {}, {}},
        value_{num_pages, page_rows, num_kv_heads, value_dim, {}, {}} {
    if (num_pages < 0 || page_rows < 1 || num_kv_heads < 0 || key_dim < 0 || value_dim < 0)
      detail::fail_with(
          "heed::paged_kv_cache: sizes must not be negative and page_rows at least 1, but are "
          "num_pages ",
          num_pages, ", page_rows ", page_rows, ", num_kv_heads ", num_kv_heads, ", key_dim ",
          key_dim, ", value_dim ", value_dim);
    for (const size_type dim : {key_dim, value_dim})
      detail::check_storage("paged_kv_cache", {num_pages, num_kv_heads, page_rows, dim});
    key_.allocate(
        detail::scales_of<Stored>("paged_kv_cache", "head_scales: key", scales.key, num_kv_heads));
    value_.allocate(detail::scales_of<Stored>("paged_kv_cache", "head_scales: value", scales.value,
                                              num_kv_heads));
    holders_.assign(static_cast<std::size_t>(num_pages), 0);
    for (size_type page = num_pages; page > 0; --page) free_.push_back(page - 1);
  }

  /// A copy has pages of its own.
  paged_kv_cache(const paged_kv_cache&) = default;
  /// A cache that was moved from has no pages and no sequences.
  paged_kv_cache(paged_kv_cache&& other) noexcept
      : page_rows_(other.page_rows_),
        key_(std::exchange(other.key_, other.key_.without_pages())),
        value_(std::exchange(other.value_, other.value_.without_pages())),
        free_(std::move(other.free_)),
        holders_(std::move(other.holders_)),
        sequences_(std::move(other.sequences_)) {}
  /// A copy for which memory runs out changes nothing.
  paged_kv_cache& operator=(paged_kv_cache other) noexcept {
    std::swap(page_rows_, other.page_rows_);
    std::swap(key_, other.key_);
    std::swap(value_, other.value_);
    std::swap(free_, other.free_);
    std::swap(holders_, other.holders_);
    std::swap(sequences_, other.sequences_);
    return *this;
  }

  /// How many tokens a page holds.
  size_type page_rows() const { return page_rows_; }
  /// How many key/value heads each sequence has.
  size_type num_kv_heads() const { return key_.heads; }
  /// How many pages no sequence holds.
  size_type free_pages() const { return static_cast<size_type>(free_.size()); }
  /// Bytes of keys, values and scales of all pages.
  size_type bytes() const { return key_.bytes() + value_.bytes(); }

  /// A new, empty sequence; returns its name.
  size_type add_sequence() {
    for (size_type s = 0; s < static_cast<size_type>(sequences_.size()); ++s)
      if (!at(s).live) {
        at(s).live = true;  // it is empty since it was removed, and its table keeps its memory
        return s;
      }
    sequences_.push_back({true, 0, {}});
    return static_cast<size_type>(sequences_.size()) - 1;
  }
  /// A new sequence with the same content: the pages are shared until one of the two writes into
  /// the last of them.
  size_type fork(size_type s) {
    check_sequence("fork", s);
    std::vector<size_type> pages =
        at(s).pages;  // may throw, and so may add_sequence: nothing has changed by then
    const size_type copy = add_sequence();
    at(copy) = sequence{true, at(s).length, std::move(pages)};
    for (const size_type page : at(copy).pages) ++holders(page);
    return copy;
  }
  /// Ends sequence s; its name may be given to a new one.
  void remove_sequence(size_type s) {
    check_sequence("remove_sequence", s);
    truncate(s, 0);
    at(s).live = false;
  }
  /// Tokens that sequence s holds now.
  size_type length(size_type s) const {
    check_sequence("length", s);
    return at(s).length;
  }

  /// Makes room in the table of sequence s for `tokens` tokens; less than there is room for changes
  /// nothing. Takes no page: those that are free go to who appends first. Throws
  /// std::invalid_argument for a negative number, or one that the pool cannot hold.
  void reserve(size_type s, size_type tokens) {
    check_sequence("reserve", s);
    const size_type most = key_.num_pages * page_rows_;
    if (tokens < 0 || tokens > most)
      detail::fail_with("heed::paged_kv_cache::reserve: tokens must be in [0, ", most,
                        "], the tokens that all pages hold, but is ", tokens);
    at(s).pages.reserve(static_cast<std::size_t>(tokens / page_rows_ + (tokens % page_rows_ != 0)));
  }

  /// Appends n tokens to sequence s: key [1, H_kv, n, key_dim], value [1, H_kv, n, value_dim].
  /// Throws std::invalid_argument where sizes do not fit or the pool has too few free pages, before
  /// anything is written.
  template <typename Key, typename Value>
  void append(size_type s, const tensor_view<Key>& key, const tensor_view<Value>& value) {
    constexpr const char* name = "paged_kv_cache::append";
    check_sequence("append", s);
    detail::check_equal(name, "key: batch", key.batch, "one sequence:", size_type{1});
    detail::check_tokens(name, key, value, key_.heads, key_.dim, value_.dim);
    sequence& seq = at(s);
    const bool copies_last =
        key.rows > 0 && seq.length % page_rows_ != 0 && holders(seq.pages.back()) > 1;
    const size_type room = static_cast<size_type>(seq.pages.size()) * page_rows_ - seq.length,
                    beyond = (std::max)(key.rows - room, size_type{0});
    const size_type more = beyond / page_rows_ + (beyond % page_rows_ != 0) + (copies_last ? 1 : 0);
    if (more > free_pages())
      detail::fail_with("heed::", name, ": ", key.rows, " tokens need ", more, " pages, but only ",
                        free_pages(), " are free");

    const std::size_t pages =
        seq.pages.size() + static_cast<std::size_t>(more - (copies_last ? 1 : 0));
    if (pages > seq.pages.capacity())
      seq.pages.reserve((std::max)(pages, 2 * seq.pages.capacity()));
    if (copies_last) {
      const size_type shared = seq.pages.back(), own = take_page();
      key_.copy_page(shared, own);
      value_.copy_page(shared, own);
      --holders(shared);
      seq.pages.back() = own;
    }
    for (size_type i = 0; i < key.rows; ++i) {
      if (seq.length % page_rows_ == 0) seq.pages.push_back(take_page());
      key_.store(key, i, seq.pages.back(), seq.length % page_rows_);
      value_.store(value, i, seq.pages.back(), seq.length % page_rows_);
      ++seq.length;
    }
  }

  /// Forgets all but the first `length` tokens of sequence s; pages that no sequence holds any more
  /// are free again.
  void truncate(size_type s, size_type length) {
    check_sequence("truncate", s);
    sequence& seq = at(s);
    if (length < 0 || length > seq.length)
      detail::fail_with("heed::paged_kv_cache::truncate: length ", length, " is not in [0, ",
                        seq.length, "], the tokens of sequence ", s);
    free_.reserve(holders_.size());  // a copy of a cache has not reserved it
    seq.length = length;
    while (static_cast<size_type>(seq.pages.size()) * page_rows_ >= length + page_rows_) {
      const size_type page = seq.pages.back();
      seq.pages.pop_back();
      if (--holders(page) == 0) free_.push_back(page);
    }
  }

  /// Some sequences as the batch of calls of cached_attention_into: batch entry b is sequences[b].
  /// Looks at the cache and at the caller's list, as they are at each call, and owns neither.
  class batch_view {
   public:
    /// The sequences of a cache, which must outlive the view. Throws std::invalid_argument for one
    /// that the cache does not have.
    batch_view(const paged_kv_cache& cache, const index_list& sequences)
        : cache_(cache), sequences_(sequences) {
      detail::check_list("paged_kv_cache::batch", "sequences", sequences);
      for (const size_type s : sequences) cache.check_sequence("batch", s);
    }
    /// How many tokens before its own a later query may look back to: -1, all.
    size_type window() const { return -1; }
    /// The keys, as the library's own functions read them.
    detail::stored_tensor<Stored> keys() const { return view(cache_.key_); }
    /// The values, likewise.
    detail::stored_tensor<Stored> values() const { return view(cache_.value_); }

   private:
    template <typename Pool>
    detail::stored_tensor<Stored> view(const Pool& pool) const {
      size_type longest = 0, pages = 0;
      for (const size_type s : sequences_) {
        cache_.check_sequence("batch", s);  // it may have been removed since
        longest = (std::max)(longest, cache_.at(s).length);
        pages = (std::max)(pages, static_cast<size_type>(cache_.at(s).pages.capacity()));
      }
      detail::stored_tensor<Stored> view(pool.all_rows(), pool.all_scales(), sequences_.size,
                                         longest);
      view.cols = pool.dim;
      view.capacity = (std::min)(pages, pool.num_pages) * pool.page_rows;
      view.sequences = cache_.sequences_.data();
      view.names = sequences_;
      return view;
    }
    const paged_kv_cache& cache_;
    index_list sequences_;
  };
  /// These sequences as the batch of one call.
  batch_view batch(const index_list& sequences) const { return batch_view(*this, sequences); }

 private:
  using sequence = detail::paged_sequence;

  /// Keys or values of every page: [num_pages, heads, page_rows, dim], in as many elements a row as
  /// hold dim numbers, and their scales.
  struct pool {
    static constexpr bool has_row_scales =
        detail::storage_traits<Stored>::scales == detail::scale_of::row;
    size_type num_pages, page_rows, heads, dim;
    std::vector<Stored> elements;
    std::vector<float> scales;

    pool without_pages() const { return {0, page_rows, heads, dim, {}, {}}; }
    size_type width() const { return detail::elements_of<Stored>(dim); }
    void allocate(std::vector<float> scales_of_heads) {
      elements.resize(static_cast<std::size_t>(num_pages * heads * page_rows * width()));
      scales = std::move(scales_of_heads);
      if (has_row_scales) scales.resize(static_cast<std::size_t>(num_pages * heads * page_rows));
    }
    size_type bytes() const {
      return static_cast<size_type>(elements.size() * sizeof(Stored) +
                                    scales.size() * sizeof(float));
    }
    tensor_view<const Stored> all_rows() const {
      return bhnd(elements.data(), num_pages, heads, page_rows, width());
    }
    tensor_view<const float> all_scales() const {
      return detail::view_scales<Stored>(scales.data(), num_pages, heads, page_rows);
    }
    void copy_page(size_type from, size_type to) {
      const size_type page = heads * page_rows, whole = page * width();
      std::copy(elements.begin() + from * whole, elements.begin() + (from + 1) * whole,
                elements.begin() + to * whole);
      if (has_row_scales)
        std::copy(scales.begin() + from * page, scales.begin() + (from + 1) * page,
                  scales.begin() + to * page);
    }
    template <typename Scalar>
    void store(const tensor_view<Scalar>& tokens, size_type i, size_type page, size_type row) {
      using Element = std::remove_const_t<Scalar>;
      for (size_type h = 0; h < heads; ++h) {
        const matrix_view<Stored> to =
            bhnd(elements.data(), num_pages, heads, page_rows, width()).head(page, h, row, 1);
        const tensor_view<float> all =
            detail::view_scales<Stored>(scales.data(), num_pages, heads, page_rows);
        float* const scale = all.data ? &all(page, h, row, 0) : nullptr;
        detail::storage_traits<Stored>::store_row(
            tensor_view<const Element>(tokens).head(0, h, i, 1), to, scale, 0);
      }
    }
  };

  sequence& at(size_type s) { return sequences_[static_cast<std::size_t>(s)]; }
  const sequence& at(size_type s) const { return sequences_[static_cast<std::size_t>(s)]; }
  size_type& holders(size_type page) { return holders_[static_cast<std::size_t>(page)]; }
  size_type take_page() {
    const size_type page = free_.back();
    free_.pop_back();
    holders(page) = 1;
    return page;
  }
  void check_sequence(const char* function, size_type s) const {
    if (s < 0 || s >= static_cast<size_type>(sequences_.size()) || !at(s).live)
      detail::fail_with("heed::paged_kv_cache::", function, ": there is no sequence ", s, " among ",
                        sequences_.size());
  }

  size_type page_rows_;
  pool key_, value_;
  std::vector<size_type> free_, holders_;
  std::vector<sequence> sequences_;
};

HEED_NAMESPACE_END

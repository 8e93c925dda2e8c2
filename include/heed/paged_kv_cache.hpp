#pragma once

#include <heed/detail/page_pool.hpp>
#include <heed/detail/page_tables.hpp>
#include <heed/detail/saved.hpp>
#include <heed/kv_cache.hpp>
#include <heed/kv_pages.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

HEED_NAMESPACE_BEGIN

/// A cache in pages: sequences come and go, each holds a table of pages from one pool, and
/// sequences that begin alike share the pages of their common prefix (Kwon et al. 2023). Stored is
/// as for kv_cache. It owns what kv_pages is a view of. Invariant: a page stands in the table as
/// often as its count says; a page that stands there more than once is never written. A call that
/// throws changes nothing. Appending allocates nothing where the table has room (see reserve).
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
      : key_{num_pages, page_rows, num_kv_heads, key_dim, {}, {}},
        value_{num_pages, page_rows, num_kv_heads, value_dim, {}, {}},
        tables_(0, page_rows) {
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
    tables_ = detail::page_tables(num_pages, page_rows);
  }

  /// A copy has pages of its own.
  paged_kv_cache(const paged_kv_cache&) = default;
  /// A cache that was moved from has no pages and no sequences.
  paged_kv_cache(paged_kv_cache&& other) noexcept
      : key_(std::exchange(other.key_, other.key_.without_pages())),
        value_(std::exchange(other.value_, other.value_.without_pages())),
        tables_(std::move(other.tables_)) {}
  /// A copy for which memory runs out changes nothing.
  paged_kv_cache& operator=(paged_kv_cache other) noexcept {
    std::swap(key_, other.key_);
    std::swap(value_, other.value_);
    std::swap(tables_, other.tables_);
    return *this;
  }

  /// How many tokens a page holds.
  size_type page_rows() const { return tables_.page_rows(); }
  /// How many key/value heads each sequence has.
  size_type num_kv_heads() const { return key_.heads; }
  /// How many pages no sequence holds.
  size_type free_pages() const { return tables_.free_pages(); }
  /// Bytes of keys, values and scales of all pages.
  size_type bytes() const { return key_.bytes() + value_.bytes(); }

  /// A new, empty sequence; returns its name.
  size_type add_sequence() { return tables_.add(); }
  /// A new sequence with the same content: the pages are shared until one of the two writes into
  /// the last of them.
  size_type fork(size_type s) {
    check_sequence("fork", s);
    return tables_.fork(s);
  }
  /// Makes sequence k, for each k, a copy of what sequence from[k] was, as a beam search does after
  /// each step: the pages are shared, and those that no sequence holds any more are free.
  void reorder(const index_list& from) {
    check_all("reorder", "from", from);
    for (size_type k = 0; k < from.size; ++k) check_sequence("reorder", k);
    tables_.reorder(from, [](size_type k) { return k; });
  }
  /// The same for some sequences: sequences[k] becomes a copy of what from[k] was.
  void reorder(const index_list& sequences, const index_list& from) {
    check_all("reorder", "sequences", sequences);
    check_all("reorder", "from", from);
    detail::check_equal("paged_kv_cache::reorder", "from: entries", from.size,
                        "the number of sequences", sequences.size);
    std::vector<bool> named(tables_.lengths().size());
    for (const size_type s : sequences) {
      if (named[static_cast<std::size_t>(s)])
        detail::fail_with("heed::paged_kv_cache::reorder: sequences: ", s, " is there twice");
      named[static_cast<std::size_t>(s)] = true;
    }
    tables_.reorder(from, [&](size_type k) { return sequences[k]; });
  }
  /// Ends sequence s; its name may be given to a new one.
  void remove_sequence(size_type s) {
    check_sequence("remove_sequence", s);
    tables_.remove(s);
  }
  /// Tokens that sequence s holds now.
  size_type length(size_type s) const {
    check_sequence("length", s);
    return tables_.length(s);
  }

  /// Makes room in the table of sequences for `tokens` tokens of sequence s; less than there is
  /// room for changes nothing. Takes no page: those that are free go to who appends first. Throws
  /// std::invalid_argument for a negative number, or one that the pool cannot hold.
  void reserve(size_type s, size_type tokens) {
    check_sequence("reserve", s);
    const size_type most = all_tokens();
    if (tokens < 0 || tokens > most)
      detail::fail_with("heed::paged_kv_cache::reserve: tokens must be in [0, ", most,
                        "], the tokens that all pages hold, but is ", tokens);
    tables_.widen(tables_.pages_for(tokens));
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
    const size_type before = tables_.length(s), held = tables_.pages_for(before);
    const bool copies_last = key.rows > 0 && before % page_rows() != 0 &&
                             tables_.holders(tables_.pages(s)[held - 1]) > 1;
    const size_type room = held * page_rows() - before,
                    fresh = tables_.pages_for((std::max)(key.rows - room, size_type{0})),
                    more = fresh + (copies_last ? 1 : 0);
    check_free(name, key.rows, more);

    tables_.make_room(held + fresh);
    if (copies_last) {
      const size_type shared = tables_.pages(s)[held - 1], own = tables_.replace_last(s);
      key_.copy_page(shared, own);
      value_.copy_page(shared, own);
    }
    tables_.extend(s, key.rows);
    for (size_type i = 0; i < key.rows; ++i) {
      const size_type j = before + i, page = tables_.pages(s)[j / page_rows()];
      key_.store(key, i, page, j % page_rows());
      value_.store(value, i, page, j % page_rows());
    }
  }

  /// Forgets all but the first `length` tokens of sequence s; pages that no sequence holds any more
  /// are free again.
  void truncate(size_type s, size_type length) {
    check_sequence("truncate", s);
    if (length < 0 || length > tables_.length(s))
      detail::fail_with("heed::paged_kv_cache::truncate: length ", length, " is not in [0, ",
                        tables_.length(s), "], the tokens of sequence ", s);
    tables_.truncate(s, length);
  }

  /// The bytes that the tokens of sequence s take outside the cache.
  size_type swap_bytes(size_type s) const {
    check_sequence("swap_bytes", s);
    return swapped(tables_.length(s)).bytes;
  }
  /// Moves the tokens of sequence s to memory of the caller, of swap_bytes(s) or more, as where the
  /// pool runs out and others go first. The sequence stays, without tokens; pages that it shared
  /// stay with the others. Throws std::invalid_argument for too few bytes.
  void swap_out(size_type s, void* to, size_type bytes) {
    check_sequence("swap_out", s);
    tables_.make_free_list();  // may throw: nothing has been written by then
    detail::save_bytes("paged_kv_cache::swap_out", swapped(tables_.length(s)), to, bytes,
                       [&](detail::byte_writer& out) {
                         write_scales(out);
                         move_tokens(*this, s, out);
                       });
    tables_.truncate(s, 0);
  }
  /// Brings them back, to a sequence that has no tokens, in a cache of the same type, sizes of
  /// pages, heads and rows, and scales of heads. Throws std::invalid_argument for bytes that are
  /// not those of a sequence, or of another cache, or damaged, and for a pool with too few free
  /// pages.
  void swap_in(size_type s, const void* from, size_type bytes) {
    constexpr const char* name = "paged_kv_cache::swap_in";
    check_sequence("swap_in", s);
    if (tables_.length(s) > 0)
      detail::fail_with("heed::", name, ": sequence ", s, " has ", tables_.length(s),
                        " tokens; one without any takes those that come in");
    const detail::saved_header header = detail::check_saved(name, swapped(0), from, bytes);
    const size_type tokens = header.count;
    if (tokens < 0 || tokens > all_tokens() || header.bytes != swapped(tokens).bytes)
      detail::fail_with("heed::", name, ": ", tokens, " tokens are not what ", header.bytes,
                        " bytes hold, or more than the ", all_tokens(), " of all pages");
    check_free(name, tokens, tables_.pages_for(tokens));
    detail::byte_reader in{static_cast<const char*>(from) + sizeof header};
    check_same_scales(name, "key", read_scales(name, "key", key_, in), key_.scales);
    check_same_scales(name, "value", read_scales(name, "value", value_, in), value_.scales);
    tables_.make_room(tables_.pages_for(tokens));
    tables_.extend(s, tokens);
    move_tokens(*this, s, in);
  }

  /// The bytes of the whole cache: its sequences with their names, and the pages that they hold.
  size_type saved_bytes() const { return saved().bytes; }
  /// Writes the whole cache to memory of the caller, of saved_bytes() or more. Throws
  /// std::invalid_argument for too few bytes.
  void save(void* to, size_type bytes) const {
    detail::save_bytes("paged_kv_cache::save", saved(), to, bytes, [&](detail::byte_writer& out) {
      tables_.write(out);
      write_scales(out);
      move_pages(*this, tables_, out);
    });
  }
  /// Makes the cache what one of the same type, pages, heads and rows was when it was saved, scales
  /// of heads too; what it held is gone. Throws std::invalid_argument for bytes that are not those
  /// of a cache, or of another one, or damaged.
  void restore(const void* from, size_type bytes) {
    constexpr const char* name = "paged_kv_cache::restore";
    const detail::saved_header header = detail::check_saved(name, saved_as_empty(), from, bytes);
    detail::byte_reader in{static_cast<const char*>(from) + sizeof header};
    detail::page_tables tables(tables_.num_pages(), page_rows());
    tables.read(name, in, header.count,
                (header.bytes - size_type{sizeof header}) / size_type{sizeof(size_type)});
    if (const size_type rest = header.bytes - (in.at - static_cast<const char*>(from));
        rest != scales_bytes() + pages_bytes(tables))
      detail::fail_with("heed::", name, ": the scales and pages take ",
                        scales_bytes() + pages_bytes(tables), " bytes, but there are ", rest);
    const std::vector<float> key_scales = read_scales(name, "key", key_, in),
                             value_scales = read_scales(name, "value", value_, in);
    std::copy(key_scales.begin(), key_scales.end(), key_.scales.begin());
    std::copy(value_scales.begin(), value_scales.end(), value_.scales.begin());
    move_pages(*this, tables, in);
    tables_ = std::move(tables);
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
    detail::stored_tensor<Stored> keys() const { return pages().keys(); }
    /// The values, likewise.
    detail::stored_tensor<Stored> values() const { return pages().values(); }
    /// The pages as the view that any owner of pages gives; it is as they are now.
    kv_pages<Stored> pages() const {
      for (const size_type s : sequences_)
        cache_.check_sequence("batch", s);  // it may have been removed since
      return cache_.all_pages().batch(sequences_);
    }

   private:
    const paged_kv_cache& cache_;
    index_list sequences_;
  };
  /// These sequences as the batch of one call.
  batch_view batch(const index_list& sequences) const { return batch_view(*this, sequences); }

 private:
  size_type all_tokens() const { return tables_.num_pages() * page_rows(); }
  kv_pages<Stored> all_pages() const {
    kv_pages<Stored> pages(key_.all_rows(), value_.all_rows(), key_.all_scales(),
                           value_.all_scales(), tables_.table(), tables_.lengths());
    pages.key_dim_ = key_.dim, pages.value_dim_ = value_.dim;
    return pages;
  }

  detail::saved_header header_of(detail::saved_kind kind) const {
    using traits = detail::storage_traits<Stored>;
    static_assert(
        traits::name != nullptr,
        "a cache can be saved where its numbers are float, double, Eigen::half, "
        "Eigen::bfloat16, std::int8_t, int8_block, int4_block, float8_e4m3 or float8_e5m2");
    detail::saved_header header;
    header.kind = kind;
    std::strncpy(header.type, traits::name, sizeof header.type - 1);
    header.page_rows = page_rows(), header.num_kv_heads = key_.heads;
    header.key_dim = key_.dim, header.value_dim = value_.dim;
    return header;
  }
  detail::saved_header swapped(size_type tokens) const {
    detail::saved_header header = header_of(detail::saved_kind::sequence);
    header.count = tokens;
    header.bytes = size_type{sizeof header} + scales_bytes() + tokens * row_bytes();
    return header;
  }
  detail::saved_header saved_as_empty() const {
    detail::saved_header header = header_of(detail::saved_kind::cache);
    header.num_pages = tables_.num_pages();
    return header;
  }
  detail::saved_header saved() const {
    detail::saved_header header = saved_as_empty();
    header.count = tables_.sequences();
    header.bytes = size_type{sizeof header} + tables_.written() * size_type{sizeof(size_type)} +
                   scales_bytes() + pages_bytes(tables_);
    return header;
  }
  /// Of the scales of heads, a token, and all pages that are held.
  size_type scales_bytes() const {
    return (key_.head_scales() + value_.head_scales()) * size_type{sizeof(float)};
  }
  size_type row_bytes() const { return key_.row_bytes() + value_.row_bytes(); }
  size_type pages_bytes(const detail::page_tables& tables) const {
    return (tables.num_pages() - tables.free_pages()) * page_rows() * row_bytes();
  }
  void write_scales(detail::byte_writer& out) const {
    for (const auto* pool : {&key_, &value_}) out.move(pool->scales.data(), pool->head_scales());
  }
  static std::vector<float> read_scales(const char* function, const char* what,
                                        const detail::page_pool<Stored>& pool,
                                        detail::byte_reader& in) {
    std::vector<float> scales(static_cast<std::size_t>(pool.head_scales()));
    in.move(scales.data(), pool.head_scales());
    detail::check_scales(function, what, scales);
    return scales;
  }
  static void check_same_scales(const char* function, const char* what,
                                const std::vector<float>& read, const std::vector<float>& own) {
    for (std::size_t h = 0; h < read.size(); ++h)
      if (read[h] != own[h])
        detail::fail_with("heed::", function, ": the bytes: ", what, " scale ", h, " ", read[h],
                          " does not match the cache's ", own[h]);
  }
  /// Rows of a page, to bytes or from them.
  template <typename Cache, typename Bytes>
  static void move_rows(Cache& cache, size_type page, size_type rows, Bytes& bytes) {
    detail::page_pool<Stored>::move_rows(cache.key_, page, rows, bytes);
    detail::page_pool<Stored>::move_rows(cache.value_, page, rows, bytes);
  }
  template <typename Cache, typename Bytes>
  static void move_tokens(Cache& cache, size_type s, Bytes& bytes) {
    const size_type length = cache.tables_.length(s), page_rows = cache.page_rows();
    for (size_type j = 0; j < length; j += page_rows)
      move_rows(cache, cache.tables_.pages(s)[j / page_rows], (std::min)(length - j, page_rows),
                bytes);
  }
  template <typename Cache, typename Bytes>
  static void move_pages(Cache& cache, const detail::page_tables& tables, Bytes& bytes) {
    for (size_type page = 0; page < tables.num_pages(); ++page)
      if (tables.holders(page) > 0) move_rows(cache, page, cache.page_rows(), bytes);
  }

  void check_free(const char* function, size_type tokens, size_type pages) const {
    if (pages > free_pages())
      detail::fail_with("heed::", function, ": ", tokens, " tokens need ", pages,
                        " pages, but only ", free_pages(), " are free");
  }
  void check_sequence(const char* function, size_type s) const {
    if (!tables_.has(s))
      detail::fail_with("heed::paged_kv_cache::", function, ": there is no sequence ", s, " among ",
                        tables_.sequences());
  }
  void check_all(const char* function, const char* what, const index_list& names) const {
    detail::check_list((std::string("paged_kv_cache::") + function).c_str(), what, names);
    for (const size_type s : names) check_sequence(function, s);
  }

  detail::page_pool<Stored> key_, value_;
  detail::page_tables tables_;
};

HEED_NAMESPACE_END

#pragma once

#include <heed/cached_attention.hpp>  // what pages are for
#include <heed/detail/check.hpp>
#include <heed/detail/storage.hpp>
#include <heed/detail/stored.hpp>
#include <heed/page_table.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <type_traits>

HEED_NAMESPACE_BEGIN

/// A view of keys and values in pages of the caller's, as a server has them: cached_attention_into
/// and ragged_cached_attention_into take it where they take a cache, and read the pages in place.
///
/// keys [pages, H_kv, page_rows, Dk], values [pages, H_kv, page_rows, Dv], of any strides:
/// heed::bnhd makes them of NHD pages [pages, page_rows, H_kv, D], heed::bhnd of HND pages [pages,
/// H_kv, page_rows, D]. Token j of sequence b is row j % page_rows of the page that stands at place
/// j / page_rows of row b of the table. Stored is as for kv_cache. Scales [pages, H_kv, page_rows,
/// 1] are factors of the rows (a stride may be 0: one factor for all); int8 without them counts as
/// whole numbers. Owns nothing: lengths, tables and pages are read at each call and may have
/// changed. Rows past a length, and entries of the table past what it needs, are never read. The
/// constructor throws std::invalid_argument for sizes that do not fit together; a call that is
/// given the view does, before anything is written, for a length that is negative or takes more
/// pages than its row of the table has, and for a page that it would have to read and that does not
/// exist: a token before the window of every query may have lost its page.
///
/// @code
/// std::vector<float> keys(6 * 16 * 2 * 64, 0.5f), values(keys);  // 6 NHD pages of 16 tokens
/// const std::vector<std::int32_t> numbers{4, 0, -1, 2, 5, 1}, lengths{20, 48};
/// const heed::kv_pages<float> pages(heed::bnhd(keys.data(), 6, 16, 2, 64),
///                                   heed::bnhd(values.data(), 6, 16, 2, 64),
///                                   heed::page_table(numbers.data(), 2, 3), lengths);
/// std::vector<float> query(2 * 8 * 64, 0.1f), out(query.size());
/// heed::workspace memory;
/// heed::cached_attention_into(heed::bnhd(query.data(), 2, 1, 8, 64), pages,
///                             heed::bnhd(out.data(), 2, 1, 8, 64), {}, heed::attention_options(),
///                             memory);
/// @endcode
template <typename Stored>
class kv_pages {
 public:
  /// Pages of keys and values; a length for each sequence of the table.
  kv_pages(const tensor_view<const Stored>& keys, const tensor_view<const Stored>& values,
           const page_table& table, const index_list& lengths)
      : kv_pages(keys, values, {}, {}, table, lengths) {}
  /// The same with the factor of each row; {}: none.
  kv_pages(const tensor_view<const Stored>& keys, const tensor_view<const Stored>& values,
           const tensor_view<const float>& key_scales, const tensor_view<const float>& value_scales,
           const page_table& table, const index_list& lengths)
      : keys_(keys),
        values_(values),
        key_scales_(key_scales),
        value_scales_(value_scales),
        table_(table),
        lengths_(lengths),
        batch_(table.sequences()),
        key_dim_(keys.cols * detail::numbers_in<Stored>),
        value_dim_(values.cols * detail::numbers_in<Stored>) {
    constexpr const char* name = "kv_pages";
    detail::check_view(name, "keys", keys);
    detail::check_view(name, "values", values);
    if (const size_type page_rows = keys.rows; page_rows < 1)
      detail::fail_with("heed::kv_pages: keys: a page must hold 1 token or more, but holds ",
                        page_rows);
    detail::product(name, "pages * page_rows", {keys.batch, keys.rows});
    check_pool("values", values);
    if (detail::storage_traits<Stored>::scales == detail::scale_of::nothing &&
        !(detail::is_none(key_scales) && detail::is_none(value_scales)))
      detail::fail_with("heed::kv_pages: scales are for pages of int8 and of 8-bit floats");
    if (!detail::is_none(key_scales)) check_scales("key_scales", key_scales);
    if (!detail::is_none(value_scales)) check_scales("value_scales", value_scales);
    detail::check_list(name, "lengths", lengths);
    detail::check_equal(name, "lengths: entries", lengths.size, "the table's sequences",
                        table.sequences());
  }

  /// Some of the sequences: batch entry b of a call is row sequences[b] of the table. The list is
  /// the caller's, and read at each call.
  kv_pages batch(const index_list& sequences) const {
    detail::check_list("kv_pages::batch", "sequences", sequences);
    kv_pages some = *this;
    some.sequences_ = sequences;
    some.batch_ = sequences.size;
    return some;
  }

  /// How many tokens before its own a later query may look back to: -1, all.
  size_type window() const { return -1; }
  /// The keys, as the library's own functions read them.
  detail::stored_tensor<Stored> keys() const { return view(keys_, key_scales_, key_dim_); }
  /// The values, likewise.
  detail::stored_tensor<Stored> values() const { return view(values_, value_scales_, value_dim_); }

 private:
  /// As many rows as the keys have.
  template <typename Scalar>
  void check_pool(const char* what, const tensor_view<Scalar>& pool) const {
    detail::check_axis("kv_pages", what, "pages", pool.batch, "keys", keys_.batch);
    detail::check_axis("kv_pages", what, "num_kv_heads", pool.heads, "keys", keys_.heads);
    detail::check_axis("kv_pages", what, "page_rows", pool.rows, "keys", keys_.rows);
  }
  void check_scales(const char* what, const tensor_view<const float>& scales) const {
    detail::check_view("kv_pages", what, scales);
    check_pool(what, scales);
    detail::check_equal("kv_pages", what, scales.cols, "one factor per row:", size_type{1});
  }
  /// Lengths are looked at by the call.
  detail::stored_tensor<Stored> view(const tensor_view<const Stored>& pool,
                                     const tensor_view<const float>& scales, size_type dim) const {
    detail::stored_tensor<Stored> view(pool, scales, batch_, 0);
    table_.check_starts();
    view.cols = dim;
    view.paged = true;
    view.table = table_;
    view.lengths = lengths_;
    view.sequences = sequences_;
    size_type pages = 0;
    for (size_type b = 0; b < batch_; ++b) {
      const size_type s = view.sequence(b);
      if (s < 0 || s >= table_.sequences()) continue;  // refused by the call
      view.rows = (std::max)(view.rows, lengths_[s]);
      pages = (std::max)(pages, table_.most(s));
    }
    view.capacity = (std::max)(view.rows, (std::min)(pages, pool.batch) * pool.rows);
    return view;
  }

  tensor_view<const Stored> keys_, values_;
  tensor_view<const float> key_scales_, value_scales_;
  page_table table_;
  index_list lengths_, sequences_;
  size_type batch_;
  size_type key_dim_, value_dim_;  // the last block of a row need not be full
  template <typename>
  friend class paged_kv_cache;
};

/// Keys and values that are views to write through are read all the same.
template <typename Key, typename Value, typename... More>
kv_pages(const tensor_view<Key>&, const tensor_view<Value>&, const More&...)
    -> kv_pages<std::remove_const_t<Key>>;

HEED_NAMESPACE_END

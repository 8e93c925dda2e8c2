#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/integers.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

HEED_NAMESPACE_BEGIN

/// A view of the numbers of the pages that hold the tokens of each sequence, in order: 32 or 64
/// bits each, in memory of the caller. What a sequence needs for its length is read, and no more.
///
/// @code
/// const std::vector<std::int32_t> numbers{4, 0, -1, 2, 5, 1};  // 2 sequences of at most 3 pages
/// const heed::page_table table(numbers.data(), 2, 3);
/// assert(table.most(1) == 3 && table.pages(1)[1] == 5);
/// const std::vector<std::int32_t> starts{0, 2, 5}, packed{4, 0, 2, 5, 1};
/// assert(heed::page_table(packed, starts).most(0) == 2);
/// @endcode
class page_table {
 public:
  /// No sequences.
  page_table() = default;
  /// A table [sequences, max_pages] whose rows are row_stride numbers apart (-1: max_pages), padded
  /// with anything: vLLM's block table.
  template <typename Integer>
  page_table(const Integer* numbers, size_type sequences, size_type max_pages,
             size_type row_stride = -1)
      : numbers_{numbers, size_type{sizeof(Integer)}},
        sequences_(sequences),
        max_pages_(max_pages),
        row_stride_(row_stride < 0 ? max_pages : row_stride) {
    static_assert(std::is_integral<Integer>::value && std::is_signed<Integer>::value &&
                      (sizeof(Integer) == 4 || sizeof(Integer) == 8),
                  "a table of pages is of std::int32_t or std::int64_t");
    if (sequences < 0 || max_pages < 0 || (!numbers && sequences > 0 && max_pages > 0))
      detail::fail_with("heed::page_table: ", sequences, " sequences of at most ", max_pages,
                        " pages at ", numbers ? "an" : "a null", " address");
    detail::product("page_table", "sequences * row_stride", {sequences, row_stride_});
  }
  /// Lists of pages one after the other: those of sequence b are [starts[b], starts[b + 1]), one
  /// start more than there are sequences (FlashInfer's indices and indptr). Throws
  /// std::invalid_argument for starts that are not in the list, or decrease.
  page_table(const index_list& numbers, const index_list& starts)
      : numbers_{numbers.data, numbers.width},
        sequences_((std::max)(starts.size - 1, size_type{0})),
        max_pages_(numbers.size),
        starts_(starts) {
    detail::check_list("page_table", "numbers", numbers);
    detail::check_list("page_table", "starts", starts);
    check_starts();
  }

  /// How many sequences have a row.
  size_type sequences() const { return sequences_; }
  /// How many pages sequence b has in the table: more than it needs, where it is padded.
  size_type most(size_type b) const {
    return starts_.data ? starts_[b + 1] - starts_[b] : max_pages_;
  }
  /// The numbers of the pages of sequence b, and what pads them.
  index_list pages(size_type b) const {
    const detail::integers row = numbers_.from(starts_.data ? starts_[b] : b * row_stride_);
    index_list list;
    list.data = row.data, list.width = row.width, list.size = most(b);
    return list;
  }
  /// The memory of the numbers, as the library's own functions look at it.
  detail::memory_region region() const {
    const std::size_t width = static_cast<std::size_t>(numbers_.width);
    return starts_.data
               ? detail::memory_region{numbers_.data, width, {1, 1, 1, max_pages_}, {0, 0, 0, 1}}
               : detail::memory_region{
                     numbers_.data, width, {1, 1, sequences_, max_pages_}, {0, 0, row_stride_, 1}};
  }
  /// Throws std::invalid_argument for starts that are not in the list, or decrease: the caller may
  /// have changed them since the table was made.
  void check_starts() const {
    for (size_type b = 0; b < starts_.size; ++b) {
      const size_type before = b > 0 ? starts_[b - 1] : 0;
      if (starts_[b] < before || starts_[b] > max_pages_)
        detail::fail_with("heed::page_table: starts: entry ", b, " is ", starts_[b], " after ",
                          before, ", in a list of ", max_pages_, " pages");
    }
  }
  /// The starts of the lists; empty where rows are of one size.
  const index_list& starts() const { return starts_; }

 private:
  detail::integers numbers_;
  size_type sequences_ = 0, max_pages_ = 0, row_stride_ = 0;
  index_list starts_;
};

HEED_NAMESPACE_END

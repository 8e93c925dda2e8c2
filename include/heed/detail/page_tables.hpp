#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/saved.hpp>
#include <heed/page_table.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Which sequence of a paged cache holds which pages of its pool. Invariants: a page stands in the
/// table as often as its count says, and is free where that is 0; sequence s has the first
/// pages_for(length(s)) entries of its row. What throws changes nothing.
class page_tables {
 public:
  static constexpr size_type gone = -1;  // the length of a sequence that was removed

  page_tables(size_type num_pages, size_type page_rows)
      : page_rows_(page_rows), holders_(static_cast<std::size_t>(num_pages)) {
    list_free_pages();
  }

  size_type num_pages() const { return static_cast<size_type>(holders_.size()); }
  size_type page_rows() const { return page_rows_; }
  size_type free_pages() const { return static_cast<size_type>(free_.size()); }
  size_type holders(size_type page) const { return holders_[static_cast<std::size_t>(page)]; }

  size_type sequences() const { return static_cast<size_type>(lengths_.size()); }
  const std::vector<size_type>& lengths() const { return lengths_; }
  page_table table() const { return {table_.data(), sequences(), room_}; }
  size_type length(size_type s) const { return lengths_[static_cast<std::size_t>(s)]; }
  bool has(size_type s) const { return s >= 0 && s < sequences() && length(s) != gone; }
  const size_type* pages(size_type s) const { return table_.data() + s * room_; }
  size_type pages_for(size_type tokens) const {
    return tokens / page_rows_ + (tokens % page_rows_ != 0);
  }

  size_type add() {
    for (size_type s = 0; s < sequences(); ++s)
      if (length(s) == gone) {
        at(s) = 0;
        return s;
      }
    const std::size_t numbers = (lengths_.size() + 1) * static_cast<std::size_t>(room_);
    if (table_.size() < numbers) table_.resize(numbers);
    lengths_.push_back(0);
    return sequences() - 1;
  }
  size_type fork(size_type s) {
    const size_type copy = add();
    std::copy(pages(s), pages(s) + held(s), row(copy));
    at(copy) = length(s);
    hold(copy);
    return copy;
  }
  /// A list of free pages that need not grow: then truncate does not throw. A copy of a cache has
  /// not reserved it.
  void make_free_list() { free_.reserve(holders_.size()); }
  void remove(size_type s) {
    truncate(s, 0);
    at(s) = gone;
  }
  void truncate(size_type s, size_type length) {
    make_free_list();
    release(s, length);
  }
  /// Sequence name(k), all of them different, becomes what sequence from[k] was.
  template <typename Name>
  void reorder(const index_list& from, const Name& name) {
    page_tables copies(0, page_rows_);
    copies.room_ = room_;
    copies.table_.resize(static_cast<std::size_t>(from.size * room_));
    for (size_type k = 0; k < from.size; ++k) {
      copies.lengths_.push_back(length(from[k]));
      std::copy(pages(from[k]), pages(from[k]) + held(from[k]), copies.row(k));
    }
    make_free_list();
    for (size_type k = 0; k < from.size; ++k)  // at first, so that no page is free in between
      for (size_type place = 0; place < copies.held(k); ++place) ++count(copies.pages(k)[place]);
    for (size_type k = 0; k < from.size; ++k) {
      release(name(k), 0);
      std::copy(copies.pages(k), copies.pages(k) + copies.held(k), row(name(k)));
      at(name(k)) = copies.length(k);
    }
  }

  /// Makes the rows of the table as wide as that, if they are not.
  void widen(size_type room) {
    if (room <= room_) return;
    product("paged_kv_cache", "sequences * pages", {sequences(), room, 8});
    std::vector<size_type> wider(lengths_.size() * static_cast<std::size_t>(room));
    for (size_type s = 0; s < sequences(); ++s)
      std::copy(pages(s), pages(s) + held(s), wider.data() + s * room);
    table_ = std::move(wider);
    room_ = room;
  }
  /// The same in steps that grow.
  void make_room(size_type room) {
    if (room > room_) widen((std::max)(room, (std::min)(2 * room_, num_pages())));
  }
  /// Adds `tokens` tokens to sequence s. There are pages enough, and there is room for them.
  void extend(size_type s, size_type tokens) {
    for (size_type place = held(s); place < pages_for(length(s) + tokens); ++place)
      row(s)[place] = take_page();
    at(s) += tokens;
  }
  /// Another page in the place of the last of sequence s, which others hold too.
  size_type replace_last(size_type s) {
    size_type& last = row(s)[held(s) - 1];
    --count(last);
    return last = take_page();
  }

  /// How many numbers `write` writes.
  size_type written() const {
    size_type numbers = sequences();
    for (size_type s = 0; s < sequences(); ++s) numbers += held(s);
    return numbers;
  }
  void write(byte_writer& out) const {
    out.move(lengths_.data(), sequences());
    for (size_type s = 0; s < sequences(); ++s) out.move(pages(s), held(s));
  }
  /// Reads the tables of so many sequences, where there are none, from at most `left` numbers,
  /// whatever those are.
  void read(const char* function, byte_reader& in, size_type num_sequences, size_type left) {
    const auto must_be = [&](bool right, const char* what) {
      if (!right)
        fail_with("heed::", function, ": ", what, " in the bytes are not those of a cache of ",
                  num_pages(), " pages");
    };
    must_be(num_sequences >= 0 && num_sequences <= left, "the sequences");
    left -= num_sequences;
    lengths_.resize(static_cast<std::size_t>(num_sequences));
    in.move(lengths_.data(), num_sequences);
    for (size_type s = 0; s < num_sequences; ++s) {
      must_be(length(s) >= gone && held(s) <= (std::min)(num_pages(), left), "the lengths");
      left -= held(s);
      room_ = (std::max)(room_, held(s));
    }
    product(function, "sequences * pages", {num_sequences, room_, 8});
    table_.resize(static_cast<std::size_t>(num_sequences * room_));
    for (size_type s = 0; s < num_sequences; ++s) {
      in.move(row(s), held(s));
      for (size_type place = 0; place < held(s); ++place)
        must_be(pages(s)[place] >= 0 && pages(s)[place] < num_pages(), "the pages");
      hold(s);
    }
    list_free_pages();
  }

 private:
  size_type& at(size_type s) { return lengths_[static_cast<std::size_t>(s)]; }
  size_type* row(size_type s) { return table_.data() + s * room_; }
  size_type held(size_type s) const { return length(s) == gone ? 0 : pages_for(length(s)); }
  size_type& count(size_type page) { return holders_[static_cast<std::size_t>(page)]; }
  /// The first is the last that is taken.
  void list_free_pages() {
    free_.clear();
    make_free_list();
    for (size_type page = num_pages(); page > 0; --page)
      if (count(page - 1) == 0) free_.push_back(page - 1);
  }
  size_type take_page() {
    const size_type page = free_.back();
    free_.pop_back();
    count(page) = 1;
    return page;
  }
  void hold(size_type s) {
    for (size_type place = 0; place < held(s); ++place) ++count(pages(s)[place]);
  }
  /// Lets go of all pages past `length` tokens.
  void release(size_type s, size_type length) {
    for (size_type place = held(s); place > pages_for(length); --place)
      if (const size_type page = pages(s)[place - 1]; --count(page) == 0) free_.push_back(page);
    at(s) = length;
  }

  size_type page_rows_;
  std::vector<size_type> holders_, free_;   // how often each page stands in the table
  std::vector<size_type> lengths_, table_;  // [sequences, room_], padded
  size_type room_ = 0;
};

}  // namespace detail
HEED_NAMESPACE_END

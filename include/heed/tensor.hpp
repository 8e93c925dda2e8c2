#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/integers.hpp>
#include <heed/detail/overlap.hpp>
#include <heed/types.hpp>

#include <Eigen/Core>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>

HEED_NAMESPACE_BEGIN

namespace detail {
template <typename Derived>
std::true_type derives_from_eigen(const Eigen::EigenBase<Derived>*);
std::false_type derives_from_eigen(const void*);
/// Any Eigen type, also one that derives from another (the head of a vector is a VectorBlock, which
/// is a Block).
template <typename T>
constexpr bool is_eigen =
    decltype(derives_from_eigen(static_cast<std::decay_t<T>*>(nullptr)))::value;

/// Whether lists of indices may be of this type: integers of 32 or 64 bits.
template <typename Element>
constexpr bool is_index =
    std::is_same<Element, std::int32_t>::value || std::is_same<Element, size_type>::value ||
    std::is_same<Element, std::int64_t>::value || std::is_same<Element, long long>::value;

/// The type of a container's elements, which are one after the other in memory; void: they are not,
/// or it has none.
template <typename Container, typename = void>
struct element_of {
  using type = void;
};
template <typename Container>
struct element_of<Container, std::void_t<decltype(*std::declval<const Container&>().data())>> {
  static constexpr bool lies_apart() {
    if constexpr (is_eigen<Container>) {
      return !Container::IsVectorAtCompileTime || int(Container::InnerStrideAtCompileTime) != 1;
    } else {
      return false;
    }
  }
  using type = std::conditional_t<lies_apart(), void,
                                  std::decay_t<decltype(*std::declval<const Container&>().data())>>;
};
}  // namespace detail

/// A view of the caller's list of indices: a std::vector, std::array or Eigen vector of integers of
/// 32 bits (std::int32_t, as cu_seqlens are elsewhere) or 64 (heed::size_type). It does not own
/// them. An empty one has no data.
struct index_list {
  /// A list of no indices.
  index_list() = default;
  /// The list that a container holds.
  template <typename Container>
  index_list(const Container& container) {
    using Element = typename detail::element_of<Container>::type;
    static_assert(detail::is_index<Element>,
                  "a list of indices is a std::vector, std::array or Eigen vector of std::int32_t "
                  "or heed::size_type (std::ptrdiff_t)");
    if constexpr (detail::is_index<Element>) {
      size = static_cast<size_type>(container.size());
      data = size > 0 ? container.data() : nullptr;
      width = size_type{sizeof(Element)};
    }
  }
  /// Refused, with a sentence: a list in braces may end before it is read.
  template <typename Integer, typename = std::enable_if_t<std::is_integral<Integer>::value>>
  index_list(std::initializer_list<Integer>) {
    static_assert(sizeof(Integer) == 0,
                  "a list of indices in braces may end before it is read: make it a std::vector, "
                  "std::array or Eigen vector");
  }

  /// Index i of the list.
  size_type operator[](size_type i) const { return detail::integers{data, width}[i]; }

  /// For range-based loops.
  struct iterator {
    /// The index here.
    size_type operator*() const { return (*list)[at]; }
    /// Goes to the next one.
    iterator& operator++() {
      ++at;
      return *this;
    }
    /// Whether two iterators of a list are at different places.
    bool operator!=(const iterator& other) const { return at != other.at; }

    const index_list* list;  ///< the list
    size_type at;            ///< the place in it
  };
  /// The first place.
  iterator begin() const { return {this, 0}; }
  /// The place after the last.
  iterator end() const { return {this, size}; }

  const void* data = nullptr;           ///< the first element; null: none
  size_type size = 0;                   ///< how many indices there are
  size_type width = sizeof(size_type);  ///< bytes of an element
};

/// A strided view of a matrix; it does not own it.
template <typename Scalar>
struct matrix_view {
  Scalar* data = nullptr;    ///< element (0, 0)
  size_type rows = 0;        ///< how many rows
  size_type cols = 0;        ///< how many columns
  size_type row_stride = 0;  ///< elements from a row to the next
  size_type col_stride = 1;  ///< elements from a column to the next

  /// Element (i, c).
  Scalar& operator()(size_type i, size_type c) const {
    return data[i * row_stride + c * col_stride];
  }
};

/// A strided view of a [batch, heads, rows, cols] tensor; it does not own it. Strides count
/// elements, may be 0 (the same values again: broadcast) and come in any order, so [B,H,N,D],
/// [B,N,H,D], a slice of a packed QKV matrix or a single Eigen matrix are all views. A view of
/// `const Scalar` reads; a view of `Scalar` may be written through.
template <typename Scalar>
struct tensor_view {
  Scalar* data = nullptr;      ///< element (0, 0, 0, 0)
  size_type batch = 0;         ///< how many batch entries
  size_type heads = 0;         ///< how many heads
  size_type rows = 0;          ///< how many rows: tokens
  size_type cols = 0;          ///< how many columns: head_dim
  size_type batch_stride = 0;  ///< elements from a batch entry to the next
  size_type head_stride = 0;   ///< elements from a head to the next
  size_type row_stride = 0;    ///< elements from a row to the next
  size_type col_stride = 1;    ///< elements from a column to the next

  /// A writable view is also a readable one.
  operator tensor_view<const Scalar>() const {
    return {data, batch, heads, rows, cols, batch_stride, head_stride, row_stride, col_stride};
  }
  /// Rows [first, first + count) of head h of batch entry b.
  matrix_view<Scalar> head(size_type b, size_type h, size_type first, size_type count) const {
    return {data + b * batch_stride + h * head_stride + first * row_stride, count, cols, row_stride,
            col_stride};
  }
  /// Element (b, h, i, c).
  Scalar& operator()(size_type b, size_type h, size_type i, size_type c) const {
    return data[b * batch_stride + h * head_stride + i * row_stride + c * col_stride];
  }
};

/// A dense tensor in the order [batch, heads, length, dim].
template <typename Scalar>
tensor_view<Scalar> bhnd(Scalar* data, size_type batch, size_type heads, size_type length,
                         size_type dim) {
  detail::product("bhnd", "batch * heads * length * dim", {batch, heads, length, dim});
  return {data, batch, heads, length, dim, heads * length * dim, length * dim, dim, 1};
}

/// A dense tensor in the order [batch, length, heads, dim].
///
/// @code
/// std::vector<float> numbers(2 * 10 * 4 * 64);
/// const auto heads =
///     heed::bnhd(numbers.data(), 2, 10, 4, 64);  // 2 sequences of 10 tokens with 4 heads of 64
/// assert(&heads(1, 2, 3, 0) == &numbers[((1 * 10 + 3) * 4 + 2) * 64]);
/// @endcode
template <typename Scalar>
tensor_view<Scalar> bnhd(Scalar* data, size_type batch, size_type length, size_type heads,
                         size_type dim) {
  detail::product("bnhd", "batch * length * heads * dim", {batch, length, heads, dim});
  return {data, batch, heads, length, dim, length * heads * dim, dim, heads * dim, 1};
}

namespace detail {
template <typename T>
constexpr bool has_memory = (int(Eigen::internal::traits<std::decay_t<T>>::Flags) &
                             int(Eigen::DirectAccessBit)) != 0;

[[noreturn]] inline void fail_view(const char* function, const char* what, size_type batch,
                                   size_type heads, size_type rows, size_type cols) {
  const bool negative = (batch | heads | rows | cols) < 0;
  fail_with("heed::", function, ": ", what, ": ",
            negative ? "sizes must not be negative, but are " : "a null pointer to ", batch, " x ",
            heads, " x ", rows, " x ", cols, negative ? "" : " numbers");
}
/// A view that a caller has filled in by hand must have sizes and memory.
template <typename Scalar>
void check_view(const char* function, const char* what, const tensor_view<Scalar>& view) {
  if ((view.batch | view.heads | view.rows | view.cols) < 0 ||
      (!view.data && view.batch > 0 && view.heads > 0 && view.rows > 0 && view.cols > 0))
    fail_view(function, what, view.batch, view.heads, view.rows, view.cols);
}
inline void check_list(const char* function, const char* what, const index_list& list) {
  if (list.size < 0 || (!list.data && list.size > 0))
    fail_with("heed::", function, ": ", what, ": a list of ", list.size, " entries at ",
              list.data ? "an" : "a null", " address");
}

/// Whether a view is {}, which means that there is none. An empty view is not: it has a size that
/// can be wrong.
template <typename Scalar>
bool is_none(const tensor_view<Scalar>& view) {
  return !view.data && view.batch == 0 && view.heads == 0 && view.rows == 0 && view.cols == 0;
}

/// Head (b, h) of a view whose extents are each 1 (the same for all) or the call's own.
template <typename Scalar>
matrix_view<Scalar> broadcast_head(const tensor_view<Scalar>& view, size_type b, size_type h) {
  const auto at = [](size_type stride, size_type extent) { return extent > 1 ? stride : 0; };
  return {view.data + b * at(view.batch_stride, view.batch) + h * at(view.head_stride, view.heads),
          view.rows, view.cols, at(view.row_stride, view.rows), at(view.col_stride, view.cols)};
}
}  // namespace detail

/// One Eigen matrix, Map, block or transpose as a tensor of one batch entry and one head: no copy,
/// any strides.
template <typename Derived>
auto view(const Eigen::DenseBase<Derived>& matrix) -> tensor_view<const typename Derived::Scalar> {
  static_assert(detail::has_memory<Derived>,
                "this expression has no memory: evaluate it into a matrix first");
  const Derived& m = matrix.derived();
  return {m.data(), 1, 1, m.rows(), m.cols(), 0, 0, m.rowStride(), m.colStride()};
}

namespace detail {
/// A matrix that has memory must not have it at a null pointer; an expression has none.
template <typename Derived>
void check_memory(const char* function, const char* what, const Eigen::DenseBase<Derived>& matrix) {
  if constexpr (has_memory<Derived>) check_view(function, what, view(matrix));
}
}  // namespace detail

/// The same, to be written through: a matrix, or a Map or block made on the spot.
template <typename Out>
auto writable_view(Out&& matrix) -> tensor_view<typename std::decay_t<Out>::Scalar> {
  static_assert(detail::is_eigen<Out> && detail::has_memory<Out>,
                "an output must be an Eigen matrix, Map or block");
  static_assert(!std::is_const<std::remove_reference_t<Out>>::value, "an output must not be const");
  return {matrix.data(),     1, 1, matrix.rows(), matrix.cols(), 0, 0, matrix.rowStride(),
          matrix.colStride()};
}

/// The layout of a projection's output: columns [h * dim, (h + 1) * dim) of row b * length + i are
/// head h of token i of sequence b. Throws std::invalid_argument where the rows are not a multiple
/// of batch, or the columns not of heads.
///
/// @code
/// const heed::rows<float> packed = heed::rows<float>::Random(2 * 10, 4 * 64);
/// const auto heads = heed::split_heads(heed::view(packed), 4, 2);
/// assert(heads(1, 2, 3, 0) == packed(10 + 3, 2 * 64));
/// @endcode
template <typename Scalar>
tensor_view<Scalar> split_heads(const tensor_view<Scalar>& packed, size_type heads,
                                size_type batch = 1) {
  detail::check_multiple("split_heads", "packed", packed.cols, "columns", "heads", heads);
  detail::check_multiple("split_heads", "packed", packed.rows, "rows", "batch", batch);
  const size_type length = packed.rows / batch, dim = packed.cols / heads;
  return {packed.data,
          batch,
          heads,
          length,
          dim,
          length * packed.row_stride,
          dim * packed.col_stride,
          packed.row_stride,
          packed.col_stride};
}

namespace detail {
/// The memory of what a call reads or writes: of a view, a list, a matrix, or a term that has a
/// view. An expression has none.
template <typename Scalar>
memory_region region_of(const tensor_view<Scalar>& view) {
  return {view.data,
          sizeof(Scalar),
          {view.batch, view.heads, view.rows, view.cols},
          {view.batch_stride, view.head_stride, view.row_stride, view.col_stride}};
}
inline memory_region region_of(const index_list& list) {
  return {list.data, static_cast<std::size_t>(list.width), {1, 1, 1, list.size}, {0, 0, 0, 1}};
}
inline memory_region region_of(const memory_region& region) { return region; }
template <typename Term>
auto region_of(const Term& term) -> decltype(region_of(term.view)) {
  return region_of(term.view);
}
template <typename Derived>
memory_region region_of(const Eigen::DenseBase<Derived>& matrix) {
  if constexpr (has_memory<Derived>) {
    return region_of(view(matrix));
  } else {
    return {};
  }
}

[[noreturn]] inline void fail_overlap(const char* function, const char* what,
                                      const memory_region& written, const char* whose,
                                      const memory_region& other) {
  const auto &w = written.extents, &o = other.extents;
  fail_with("heed::", function, ": ", what, " (", w[0], " x ", w[1], " x ", w[2], " x ", w[3],
            ") overlaps ", whose, " (", o[0], " x ", o[1], " x ", o[2], " x ", o[3], ")");
}
[[noreturn]] inline void fail_overlaps_itself(const char* function, const char* what,
                                              const memory_region& written) {
  const auto &w = written.extents, &s = written.strides;
  fail_with("heed::", function, ": ", what, " (", w[0], " x ", w[1], " x ", w[2], " x ", w[3],
            ") overlaps itself: its strides are ", s[0], ", ", s[1], ", ", s[2], " and ", s[3]);
}
/// Memory with its name in messages. An output that is absent has none.
struct named_region {
  template <typename Written>
  named_region(const char* name, const Written& written) : what(name), memory(region_of(written)) {}
  template <typename Written>
  named_region(const char* name, const std::optional<Written>& written)
      : what(name), memory(written ? region_of(*written) : memory_region()) {}

  const char* what;
  memory_region memory;
};
inline void check_pair(const char* function, const named_region& one, const char* whose,
                       const memory_region& other) {
  if (overlap(one.memory, other)) fail_overlap(function, one.what, one.memory, whose, other);
}
template <typename Other>
void check_other(const char* function, const named_region& first, const named_region& second,
                 const char* whose, const Other& other) {
  const memory_region region = region_of(other);
  check_pair(function, first, whose, region);
  check_pair(function, second, whose, region);
}
template <typename Other>
HEED_INLINE void check_other(const char* function, const named_region& first,
                             const named_region& second, const char* whose,
                             const std::optional<Other>& other) {
  if (other) check_other(function, first, second, whose, *other);
}
inline void check_others(const char*, const named_region&, const named_region&) {}
template <typename Other, typename... More>
HEED_INLINE void check_others(const char* function, const named_region& first,
                              const named_region& second, const char* whose, const Other& other,
                              const More&... more) {
  check_other(function, first, second, whose, other);
  check_others(function, first, second, more...);
}

/// What a call writes must have an address of its own for each element, and share no byte with
/// anything else that it reads or writes. After the outputs, of which the second may be absent,
/// come the names and the views, lists, matrices and terms of all that is read. Inline, since to
/// hand on two dozen references costs a small call more than to look at the few that are there.
template <typename... Others>
HEED_INLINE void check_apart(const char* function, const named_region& first,
                             const named_region& second, const Others&... others) {
  for (const named_region* output : {&first, &second})
    if (overlaps_itself(output->memory))
      fail_overlaps_itself(function, output->what, output->memory);
  check_pair(function, first, second.what, second.memory);
  check_others(function, first, second, others...);
}
inline named_region no_output() { return {"", std::optional<index_list>()}; }
template <typename... Others>
void check_apart(const char* function, const named_region& only, const Others&... others) {
  check_apart(function, only, no_output(), others...);
}
}  // namespace detail

HEED_NAMESPACE_END

#pragma once

#include <heed/detail/abi.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

HEED_NAMESPACE_BEGIN
namespace detail {

/// The memory that a view or a list reaches, whatever its scalar: numbers of `width` bytes along
/// four axes, in [begin, end). None: begin == end.
struct memory_region {
  using axes = std::array<std::ptrdiff_t, 4>;

  memory_region() = default;
  memory_region(const void* data, std::size_t bytes, const axes& sizes, const axes& their_strides)
      : extents(sizes), strides(their_strides), width(static_cast<std::ptrdiff_t>(bytes)) {
    if (!data || ((sizes[0] - 1) | (sizes[1] - 1) | (sizes[2] - 1) | (sizes[3] - 1)) < 0) return;
    // Without a sign, which may wrap: a view may be of more than there is memory.
    std::size_t below = 0, above = 1;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      const std::size_t reach =
          static_cast<std::size_t>(extents[axis] - 1) * static_cast<std::size_t>(strides[axis]);
      (strides[axis] < 0 ? below : above) += reach;
    }
    begin = reinterpret_cast<std::uintptr_t>(data) + below * bytes;
    end = reinterpret_cast<std::uintptr_t>(data) + above * bytes;
  }

  axes extents{}, strides{};
  std::ptrdiff_t width = 0;
  std::uintptr_t begin = 0, end = 0;
};

/// The sums of some steps, each of `stride` bytes and taken 0 to `most` times.
class address_steps {
 public:
  /// A step for each axis along which the address changes. Returns false where there are steps of
  /// that length already, which become more, and for an axis of the same numbers again and again.
  bool add(const memory_region& region) {
    bool all_new = true;
    for (std::size_t axis = 0; axis < 4; ++axis)
      if (region.extents[axis] > 1)
        all_new &= add(region.strides[axis], region.width, region.extents[axis] - 1);
    return all_new;
  }

  /// Whether a sum is in [low, high]. The longest steps are chosen first. Where strides are nested,
  /// all shorter steps together reach about as far as one longer one, and no more than two or three
  /// numbers of each are tried. Strides that are not can make it thousands: after the first
  /// thousand the answer is yes.
  bool reach_into(std::ptrdiff_t low, std::ptrdiff_t high) const {
    int tries = 1000;
    return !fits_ || reach_into(0, reach_, low, high, tries);
  }

  /// Whether two ways to take the steps have sums that differ by less than `width`.
  bool repeat_within(std::ptrdiff_t width) const {
    if (!fits_) return true;
    std::ptrdiff_t shorter = 0;  // what all shorter steps reach
    for (std::size_t n = count_; n-- > 0;) {
      const step& one = steps_[n];
      if (one.stride < shorter + width) {  // they can make up for one of these, or more
        address_steps differences;
        differences.add(one.stride, 1, one.most - 1);
        for (std::size_t m = n + 1; m < count_; ++m)
          differences.add(steps_[m].stride, 1, 2 * steps_[m].most);
        const std::ptrdiff_t even = shorter - one.stride;
        if (differences.reach_into(even - width + 1, even + width - 1)) return true;
      }
      shorter += one.stride * one.most;
    }
    return false;
  }

 private:
  bool add(std::ptrdiff_t stride, std::ptrdiff_t width, std::ptrdiff_t most) {
    if (stride == 0) return false;
    std::ptrdiff_t reach = 0;
    fits_ &= !__builtin_mul_overflow((std::abs)(stride), width, &stride) &&
             !__builtin_mul_overflow(stride, most, &reach) &&
             !__builtin_add_overflow(reach_, reach, &reach_);
    std::size_t place = count_;
    while (place > 0 && steps_[place - 1].stride <= stride) --place;
    if (place < count_ && steps_[place].stride == stride) {
      steps_[place].most += most;
      return false;
    }
    for (std::size_t n = count_++; n > place; --n) steps_[n] = steps_[n - 1];
    steps_[place] = {stride, most};
    return true;
  }
  bool reach_into(std::size_t first, std::ptrdiff_t reach, std::ptrdiff_t low, std::ptrdiff_t high,
                  int& tries) const {
    if (high < 0 || low > reach) return false;
    if (first == count_ || --tries < 0) return true;
    const step& longest = steps_[first];
    const std::ptrdiff_t rest = reach - longest.stride * longest.most;
    for (std::ptrdiff_t taken = (std::min)(high / longest.stride, longest.most); taken >= 0;
         --taken) {
      const std::ptrdiff_t sum = taken * longest.stride;
      if (sum + rest < low) return false;
      if (reach_into(first + 1, rest, low - sum, high - sum, tries)) return true;
    }
    return false;
  }

  struct step {
    std::ptrdiff_t stride, most;
  };
  std::array<step, 8> steps_;  // the longest first
  std::size_t count_ = 0;
  std::ptrdiff_t reach_ = 0;  // the largest sum
  bool fits_ = true;          // false: no memory is as large
};

/// Whether both are columns of one matrix and share none: the layout of packed projections, in a
/// fraction of the time of the general rule below. a begins first.
inline bool columns_apart(const memory_region& a, const memory_region& b) {
  const auto bytes = [](const memory_region& region, std::ptrdiff_t numbers) {
    return static_cast<std::size_t>(numbers) * static_cast<std::size_t>(region.width);
  };
  const std::size_t row = bytes(a, a.strides[2]);
  if (a.extents[0] != 1 || b.extents[0] != 1 || a.strides[2] <= 0 || row != bytes(b, b.strides[2]))
    return false;
  const auto columns = [&](const memory_region& region) {
    return region.end - region.begin - row * static_cast<std::size_t>(region.extents[2] - 1);
  };
  const std::size_t first_of_b = (b.begin - a.begin) % row;
  return columns(a) <= first_of_b && first_of_b + columns(b) <= row;
}
/// overlap for regions whose addresses are not apart.
inline bool interleaved_overlap(const memory_region& a, const memory_region& b) {
  if (a.begin <= b.begin ? columns_apart(a, b) : columns_apart(b, a)) return false;
  // From the first number of a to the last of b is `distance`; each step in a, and each step back
  // in b, makes it shorter.
  address_steps steps;
  steps.add(a);
  steps.add(b);
  const std::ptrdiff_t distance = static_cast<std::ptrdiff_t>(b.end - a.begin) - b.width;
  return steps.reach_into(distance - a.width + 1, distance + b.width - 1);
}
/// Whether two regions have a byte in common. Exact but for the strides at which address_steps
/// gives up: those are taken to overlap.
inline bool overlap(const memory_region& a, const memory_region& b) {
  return a.begin < b.end && b.begin < a.end && interleaved_overlap(a, b);
}

/// Whether two numbers of one region have a byte in common: such a view can be read, but not
/// written. Exact as overlap is.
inline bool overlaps_itself(const memory_region& region) {
  if (region.begin == region.end) return false;
  // What most layouts are: rows or heads inside one another, in batch entries one after the other.
  const std::size_t inner = region.strides[1] < region.strides[2] ? 1 : 2, outer = 3 - inner;
  std::size_t reach = 1;
  bool nested = true;
  for (const std::size_t axis : {std::size_t{3}, inner, outer, std::size_t{0}}) {
    const std::size_t stride = static_cast<std::size_t>(region.strides[axis]),
                      most = static_cast<std::size_t>(region.extents[axis] - 1);
    nested &= most == 0 || (region.strides[axis] > 0 && stride >= reach);
    reach += stride * most;
  }
  if (nested) return false;
  address_steps steps;
  return !steps.add(region) || steps.repeat_within(region.width);
}

}  // namespace detail
HEED_NAMESPACE_END

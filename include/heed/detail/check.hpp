#pragma once

#include <heed/detail/abi.hpp>
#include <heed/failure.hpp>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>

HEED_NAMESPACE_BEGIN

namespace detail {
/// The one way out for a wrong argument: std::invalid_argument, or the failure handler and abort
/// where exceptions are off.
[[noreturn]] inline void fail(const std::string& message) {
#if HEED_EXCEPTIONS
  throw std::invalid_argument(message);
#else
  if (const failure_handler handler = process::failure_handler.load()) {
    handler(message.c_str());
  } else {
    std::fprintf(stderr, "%s\n", message.c_str());
  }
  std::abort();
#endif
}

/// Text or a number. One function makes a message of a list of them, so that a check costs a
/// compiler no more than the list.
class message_part {
 public:
  message_part(const char* text) : kind_(kind::text), text_(text) {}
  message_part(const std::string& text) : message_part(text.c_str()) {}
  template <typename Number>
  message_part(Number number) : kind_(std::is_integral<Number>::value ? kind::whole : kind::real) {
    static_assert(std::is_arithmetic<Number>::value, "a part of a message is text or a number");
    if constexpr (std::is_integral<Number>::value) {
      whole_ = static_cast<long long>(number);
    } else {
      real_ = static_cast<double>(number);
    }
  }
  friend std::ostream& operator<<(std::ostream& out, const message_part& part) {
    return part.kind_ == kind::text    ? out << part.text_
           : part.kind_ == kind::whole ? out << part.whole_
                                       : out << part.real_;
  }

 private:
  enum class kind : unsigned char { text, whole, real } kind_;
  union {
    const char* text_;
    long long whole_;
    double real_;
  };
};
[[noreturn]] inline void fail_with_list(std::initializer_list<message_part> parts) {
  std::ostringstream message;
  for (const message_part& part : parts) message << part;
  fail(message.str());
}

/// fail with the parts one after the other: fail_with("heed::attention: ", argument, " has ", n, "
/// rows").
template <typename... Parts>
[[noreturn]] void fail_with(Parts... parts) {
  fail_with_list({parts...});
}

[[noreturn]] inline void fail_unequal(const char* function, const char* what, Eigen::Index got,
                                      const char* whose, Eigen::Index wanted) {
  fail_with("heed::", function, ": ", what, " ", got, " does not match ", whose, " ", wanted);
}
/// `got`, the size of `what`, must equal `wanted`, the size of `whose`: the error names the
/// function, the argument and both sizes.
inline void check_equal(const char* function, const char* what, Eigen::Index got, const char* whose,
                        Eigen::Index wanted) {
  if (got != wanted) fail_unequal(function, what, got, whose, wanted);
}

[[noreturn]] inline void fail_axis(const char* function, const char* what, const char* axis,
                                   Eigen::Index got, const char* whose, Eigen::Index wanted) {
  fail_with("heed::", function, ": ", what, ": ", axis, " ", got, " does not match ", whose, "'s ",
            axis, " ", wanted);
}
/// The same where both are the size of one axis.
inline void check_axis(const char* function, const char* what, const char* axis, Eigen::Index got,
                       const char* whose, Eigen::Index wanted) {
  if (got != wanted) fail_axis(function, what, axis, got, whose, wanted);
}

/// A size, which must not be negative.
inline std::ptrdiff_t checked_size(const char* function, const char* what, std::ptrdiff_t extent) {
  if (extent < 0)
    fail_with("heed::", function, ": ", what, " must not be negative, but is ", extent);
  return extent;
}

/// An extent of an argument that may also be 1, the same for all.
inline void check_extent(const char* function, const char* what, const char* axis,
                         std::ptrdiff_t extent, std::ptrdiff_t wanted) {
  if (extent != 1 && extent != wanted)
    fail_with("heed::", function, ": ", what, " has ", axis, " ", extent,
              ", which is neither 1 nor the call's ", axis, " ", wanted);
}

/// `whole` of `what` must be parts of one size, and there must be one at least.
inline void check_multiple(const char* function, const char* what, std::ptrdiff_t whole,
                           const char* of, const char* parts_name, std::ptrdiff_t parts) {
  if (parts < 1)
    fail_with("heed::", function, ": ", parts_name, " must be 1 or more, but is ", parts);
  if (whole % parts != 0)
    fail_with("heed::", function, ": ", what, ": ", whole, " ", of, " are not a multiple of ",
              parts_name, " ", parts);
}

[[noreturn]] inline void fail_product(const char* function, const char* what,
                                      std::initializer_list<std::ptrdiff_t> sizes) {
  std::ostringstream factors;
  for (const std::ptrdiff_t extent : sizes) factors << (factors.tellp() > 0 ? " * " : "") << extent;
  fail_with("heed::", function, ": ", what, ": ", factors.str(), " is more than an index can hold");
}

/// The product of sizes; it must be an index.
constexpr std::ptrdiff_t product(const char* function, const char* what,
                                 std::initializer_list<std::ptrdiff_t> sizes) {
  std::ptrdiff_t all = 1;
  bool fits = true, none = false;
  for (const std::ptrdiff_t extent : sizes) {
    fits &= !__builtin_mul_overflow(all, extent, &all);
    none |= extent == 0;
  }
  if (none) return 0;
  if (!fits) fail_product(function, what, sizes);
  return all;
}
}  // namespace detail

HEED_NAMESPACE_END

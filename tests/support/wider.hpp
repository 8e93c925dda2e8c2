#pragma once

namespace testing {

/// The type that the reference is run in to know what is right.
template <typename Scalar>
struct wider {
  using type = double;
};
template <>
struct wider<double> {
  using type = long double;
};
template <typename Scalar>
using wider_t = typename wider<Scalar>::type;

}  // namespace testing

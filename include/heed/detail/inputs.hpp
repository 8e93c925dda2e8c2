#pragma once

#include <heed/detail/check.hpp>
#include <heed/result.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <cstddef>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// The scalar of an Eigen type; void for anything else, so that a wrong type reaches the sentence
/// that refuses it.
template <typename T, bool = is_eigen<T>>
struct scalar_of {
  using type = void;
};
template <typename T>
struct scalar_of<T, true> {
  using type = typename T::Scalar;
};
template <typename T, bool = is_eigen<T>>
struct cols_of {
  static constexpr int value = Eigen::Dynamic;
};
template <typename T>
struct cols_of<T, true> {
  static constexpr int value = int(T::ColsAtCompileTime);
};

/// What {} is where a function takes an argument of any type.
struct absent {};

template <typename T>
struct view_scalar {
  using type = void;
};
template <typename Scalar>
struct view_scalar<tensor_view<Scalar>> {
  using type = Scalar;
};

/// The lse that a call writes, as a view: {} is none, in every call.
template <typename Scalar, typename Lse>
tensor_view<accumulator_t<std::remove_const_t<Scalar>>> lse_of(Lse&& lse) {
  using given = std::decay_t<Lse>;
  using viewed = typename view_scalar<given>::type;
  if constexpr (std::is_same<given, absent>::value) {
    return {};
  } else if constexpr (!std::is_void<viewed>::value) {
    static_assert(lse_fits<std::remove_const_t<Scalar>, viewed>::value);
    return lse;
  } else {
    static_assert(!std::is_same<given, std::nullptr_t>::value,
                  "a call without lse takes {} in its place, not nullptr");
    static_assert(lse_fits<std::remove_const_t<Scalar>, typename scalar_of<given>::type>::value);
    return writable_view(lse);
  }
}

/// One argument of a call: one that has memory is viewed in place, any other expression is
/// evaluated once into rows.
template <typename Scalar, typename Expression, bool = has_memory<Expression>>
struct input {
  explicit input(const Expression& expression) : view(heed::view(expression)) {}
  tensor_view<const Scalar> view;
};
template <typename Scalar, typename Expression>
struct input<Scalar, Expression, false> {
  explicit input(const Expression& expression) : value(expression), view(heed::view(value)) {}
  input(const input&) = delete;
  rows<Scalar> value;
  tensor_view<const Scalar> view;
};

/// query, key and value of one head as views, with the types of the result; explicit template
/// arguments are compared with them.
template <typename Scalar, int Dk, int Dv, typename Query, typename Key, typename Value>
class inputs {
  static_assert(is_eigen<Query> && is_eigen<Key> && is_eigen<Value>,
                "query, key and value must be Eigen matrices, Maps, blocks or expressions");
  using query_scalar = typename scalar_of<Query>::type;
  static_assert(is_real<query_scalar>,
                "query, key and value must be of a real, non-integer type: cast integers, split "
                "complex numbers");
  static_assert(std::is_same<query_scalar, typename scalar_of<Key>::type>::value &&
                    std::is_same<query_scalar, typename scalar_of<Value>::type>::value,
                "query, key and value must have one scalar type: cast the others to it");
  static_assert(std::is_same<Scalar, deduced>::value || std::is_same<Scalar, query_scalar>::value,
                "the scalar type given to the function is not that of query: cast the matrices, or "
                "leave the template argument out");
  static constexpr bool compatible(int a, int b) {
    return a == Eigen::Dynamic || b == Eigen::Dynamic || a == b;
  }
  static constexpr int query_cols = cols_of<Query>::value, key_cols = cols_of<Key>::value,
                       value_cols = cols_of<Value>::value;
  static_assert(compatible(query_cols, key_cols),
                "query and key have different head_dim (columns)");
  static_assert(compatible(Dk, query_cols) && compatible(Dk, key_cols),
                "Dk is not the number of columns of query and key");
  static_assert(compatible(Dv, value_cols),
                "Dv is not the number of columns of value; Dv is Dk unless it is given");

  input<query_scalar, Query> query_;
  input<query_scalar, Key> key_;
  input<query_scalar, Value> value_;

 public:
  using scalar = query_scalar;
  static constexpr int d_v = Dv != Eigen::Dynamic ? Dv : value_cols;
  using output = rows<scalar, d_v>;
  using result = attention_result<scalar, d_v>;

  inputs(const char* function, const Query& q, const Key& k, const Value& v)
      : query_(q), key_(k), value_(v), query(query_.view), key(key_.view), value(value_.view) {
    if (Dk != Eigen::Dynamic)
      check_equal(function, "query: head_dim", query.cols, "the template argument Dk",
                  size_type{Dk});
    if (Dv != Eigen::Dynamic)
      check_equal(function, "value: head_dim", value.cols, "the template argument Dv",
                  size_type{Dv});
  }
  inputs(const inputs&) = delete;

  tensor_view<const scalar> query, key, value;
};

}  // namespace detail
HEED_NAMESPACE_END

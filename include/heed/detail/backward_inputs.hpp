#pragma once

#include <heed/detail/inputs.hpp>
#include <heed/result.hpp>

#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// The inputs of a backward call of one head as views, with the type of the result.
template <typename Scalar, int Dk, int Dv, typename Query, typename Key, typename Value,
          typename Out, typename Lse, typename GradOut>
class backward_inputs : public inputs<Scalar, Dk, Dv, Query, Key, Value> {
  static_assert(is_eigen<Out> && is_eigen<Lse> && is_eigen<GradOut>,
                "out, lse and grad_out must be Eigen matrices, Maps, blocks or expressions");
  using base = inputs<Scalar, Dk, Dv, Query, Key, Value>;
  using out_scalar = typename scalar_of<Out>::type;
  using lse_scalar = typename scalar_of<Lse>::type;
  using grad_scalar = typename scalar_of<GradOut>::type;

  input<out_scalar, Out> out_;
  input<lse_scalar, Lse> lse_;
  input<grad_scalar, GradOut> grad_out_;

 public:
  static constexpr int d_k = Dk != Eigen::Dynamic ? Dk : cols_of<Query>::value;
  using result = attention_gradients<typename base::scalar, d_k, base::d_v>;

  backward_inputs(const char* function, const Query& q, const Key& k, const Value& v, const Out& o,
                  const Lse& l, const GradOut& g)
      : base(function, q, k, v),
        out_(o),
        lse_(l),
        grad_out_(g),
        out(out_.view),
        lse(lse_.view),
        grad_out(grad_out_.view) {}

  /// Room for the gradients.
  result make_result() const {
    result room;
    room.query.resize(this->query.rows, this->query.cols);
    room.key.resize(this->key.rows, this->key.cols);
    room.value.resize(this->value.rows, this->value.cols);
    return room;
  }

  tensor_view<const out_scalar> out;
  tensor_view<const lse_scalar> lse;
  tensor_view<const grad_scalar> grad_out;
};

/// Looks at the type of a gradient that comes in.
template <typename Scalar, typename Grad>
struct grad_fits : std::true_type {
  static_assert(is_eigen<Grad>, "a gradient must be an Eigen matrix, Map, block or expression");
  static_assert(std::is_same<Scalar, typename scalar_of<Grad>::type>::value,
                "a gradient must have the scalar type of what it is the gradient of");
};
/// A gradient that comes in, of a product: a row for each of x, and the columns of a weight.
template <typename Scalar, typename Grad>
void check_grad(const char* function, const char* what, const Grad& grad, size_type n,
                const char* weight, size_type cols) {
  static_assert(grad_fits<Scalar, Grad>::value);
  check_memory(function, what, grad);
  check_axis(function, what, "rows", grad.rows(), "x", n);
  check_axis(function, what, "columns", grad.cols(), weight, cols);
}

}  // namespace detail
HEED_NAMESPACE_END

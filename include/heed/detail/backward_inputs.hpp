#pragma once

#include <heed/detail/inputs.hpp>

HEED_NAMESPACE_BEGIN

/// The gradients of attention with respect to its inputs, by their names.
template <typename Scalar, int Dk = Eigen::Dynamic, int Dv = Eigen::Dynamic>
struct attention_gradients {
  rows<Scalar, Dk> query;  ///< n_q x Dk
  rows<Scalar, Dk> key;    ///< n_kv x Dk
  rows<Scalar, Dv> value;  ///< n_kv x Dv
};

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

}  // namespace detail
HEED_NAMESPACE_END

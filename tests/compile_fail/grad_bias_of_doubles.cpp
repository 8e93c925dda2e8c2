// wants: not a term of attention, or one of another scalar type
#include <heed/heed.hpp>

void wrong() {
  const heed::rows<float> x = heed::rows<float>::Ones(2, 4), bias = heed::rows<float>::Zero(2, 2);
  heed::rows<double> gradient(2, 2);
  const auto forward = heed::attention_with_lse(x, x, x, {}, heed::bias(bias));
  heed::attention_backward(x, x, x, forward.out, forward.lse, x, {}, heed::bias(bias),
                           heed::grad_bias(gradient));
}

// wants: an output must not be const
#include <heed/heed.hpp>

void wrong() {
  const heed::rows<float> x = heed::rows<float>::Ones(2, 4), bias = heed::rows<float>::Zero(2, 2);
  const auto forward = heed::attention_with_lse(x, x, x, {}, heed::bias(bias));
  heed::attention_backward(x, x, x, forward.out, forward.lse, x, {}, heed::bias(bias),
                           heed::grad_bias(bias));
}

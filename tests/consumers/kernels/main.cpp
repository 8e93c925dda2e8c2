// A program that takes its kernels from heed::kernels: attention, its gradient, a product and a
// linear form.
#include <heed/heed.hpp>

#ifndef HEED_EXTERN_KERNELS
#error "heed::kernels has not said that the kernels are elsewhere"
#endif

#include <cstdio>

int main() {
  const heed::rows<float> key = heed::rows<float>::Random(7, 4),
                          value = heed::rows<float>::Constant(7, 3, 2.5f),
                          ones = heed::rows<float>::Ones(7, 3);
  const auto forward = heed::attention_with_lse(key, key, value);
  const auto grad = heed::attention_backward(key, key, value, forward.out, forward.lse, ones);
  const heed::rows<float> linear = heed::linear_attention(key, key, value),
                          product = heed::project(value, heed::rows<float>::Ones(3, 2));
  std::printf("heed on %s\n", heed::name(heed::best_isa()));
  // Values that are all the same: no gradient reaches the scores, and dV adds up to the ones.
  const bool good = forward.out.isApproxToConstant(2.5f, 1e-5f) && grad.query.norm() < 1e-4f &&
                    std::abs(grad.value.sum() - 21) < 1e-3f && linear.allFinite() &&
                    product.isApproxToConstant(7.5f, 1e-6f);
  return good ? 0 : 1;
}

// Two files with the whole library in one header, linked together.
#include <heed.hpp>

#include <cstdio>

heed::rows<float> softmax_elsewhere(const heed::rows<float>& scores);

int main() {
  const heed::rows<float> key = heed::rows<float>::Random(7, 4),
                          value = heed::rows<float>::Constant(7, 3, 2.5f);
  const heed::rows<float> out = heed::attention(key, key, value),
                          weights = softmax_elsewhere(heed::rows<float>::Zero(2, 4));
  std::printf("heed %d.%d.%d on %s\n", HEED_VERSION_MAJOR, HEED_VERSION_MINOR, HEED_VERSION_PATCH,
              heed::name(heed::best_isa()));
  return out.isApproxToConstant(2.5f, 1e-5f) && weights.isApproxToConstant(0.25f, 1e-6f) ? 0 : 1;
}

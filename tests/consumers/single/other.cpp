#include <heed.hpp>

heed::rows<float> softmax_elsewhere(const heed::rows<float>& scores) {
  return heed::scaled_softmax(scores, 1.0f);
}

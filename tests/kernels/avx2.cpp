#include <heed/heed.hpp>

HEED_DEFINE_KERNELS(avx2)

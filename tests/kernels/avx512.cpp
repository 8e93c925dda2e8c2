#include <heed/heed.hpp>

#if HEED_X86
HEED_DEFINE_KERNELS(avx512)
#endif

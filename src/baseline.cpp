#include <heed/detail/instances.hpp>

HEED_DEFINE_KERNELS(baseline)

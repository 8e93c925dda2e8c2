#include <heed/detail/plan_instances.hpp>

HEED_DEFINE_PLANS

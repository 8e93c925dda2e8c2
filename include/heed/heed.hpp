#pragma once

#include <heed/types.hpp>
#include <heed/version.hpp>

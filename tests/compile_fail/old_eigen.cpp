// wants: heed needs Eigen 3.4 or 5
#include <Eigen/Core>
#undef EIGEN_MAJOR_VERSION
#define EIGEN_MAJOR_VERSION 3
#include <heed/heed.hpp>

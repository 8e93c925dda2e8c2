// wants: heed: EIGEN_DEFAULT_DENSE_INDEX_TYPE must be std::ptrdiff_t, Eigen's own choice: sizes and
// strides are 64 bits wide
#define EIGEN_DEFAULT_DENSE_INDEX_TYPE int
#include <heed/heed.hpp>

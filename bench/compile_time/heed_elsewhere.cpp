// The same call in a program that compiles the kernels once, in another file (see
// heed/detail/instances.hpp).
#define HEED_EXTERN_KERNELS
#include <heed/attention.hpp>

using rows = Eigen::Matrix<float, Eigen::Dynamic, 64, Eigen::RowMajor>;

rows run(const rows& query, const rows& key, const rows& value) {
  return heed::attention<float, 64>(query, key, value);
}

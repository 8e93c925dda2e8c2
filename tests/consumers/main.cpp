// What a user writes first. All three ways to get at the library build this file.
#include <heed/heed.hpp>

#include <cstdio>

int main() {
  const Eigen::MatrixXf key = Eigen::MatrixXf::Random(7, 4), value = Eigen::MatrixXf::Constant(7, 3, 2.5f);
  const Eigen::MatrixXf out = heed::attention(key, key, value);
  std::printf("heed %d.%d.%d on Eigen %d.%d\n", HEED_VERSION_MAJOR, HEED_VERSION_MINOR, HEED_VERSION_PATCH, EIGEN_MAJOR_VERSION,
              EIGEN_MINOR_VERSION);
  return out.isApproxToConstant(2.5f, 1e-5f) ? 0 : 1;
}

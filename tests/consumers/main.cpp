// What a user writes first. All three ways to get at the library build this file.
#include <heed/heatmap.hpp>
#include <heed/heed.hpp>

#include <cstdio>
#include <string>
#include <vector>

int main() {
  const Eigen::MatrixXf key = Eigen::MatrixXf::Random(7, 4),
                        value = Eigen::MatrixXf::Constant(7, 3, 2.5f);
  const Eigen::MatrixXf out = heed::attention(key, key, value);
  std::printf("heed %d.%d.%d on Eigen %d.%d\n", HEED_VERSION_MAJOR, HEED_VERSION_MINOR,
              HEED_VERSION_PATCH, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION);
  const std::vector<std::string> labels(7, "token");
  const std::string page = heed::heatmap_html(Eigen::MatrixXf::Identity(7, 7), labels,
                                              labels);  // its parts are files of their own
  return out.isApproxToConstant(2.5f, 1e-5f) && !page.empty() ? 0 : 1;
}

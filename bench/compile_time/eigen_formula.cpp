// The formula in Eigen's own words.
#include <Eigen/Core>

using rows = Eigen::Matrix<float, Eigen::Dynamic, 64, Eigen::RowMajor>;

rows run(const rows& query, const rows& key, const rows& value) {
  Eigen::MatrixXf weights = query / 8.0f * key.transpose();
  const Eigen::VectorXf most = weights.rowwise().maxCoeff();
  weights = (weights.colwise() - most).array().exp();
  const Eigen::VectorXf sums = weights.rowwise().sum();
  return (weights * value).array().colwise() / sums.array();
}

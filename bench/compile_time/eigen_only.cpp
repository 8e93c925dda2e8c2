// A function on Eigen matrices that does next to nothing: the price of including Eigen.
#include <Eigen/Core>

using rows = Eigen::Matrix<float, Eigen::Dynamic, 64, Eigen::RowMajor>;

rows run(const rows& query, const rows& key, const rows& value) { return query + key + value; }

// heed beside names that a C library, the C++ library and Eigen have too: <strings.h> declares a function `index`.
#include <strings.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <heed/heatmap.hpp>
#include <heed/heed.hpp>

namespace own {
using heed::index;
index twice(index n) { return 2 * n; }
}  // namespace own

using namespace std;
using namespace Eigen;
using namespace heed;

MatrixXf attend(const MatrixXf& query, const MatrixXf& key, const MatrixXf& value) {
  using heed::index;
  attention_options options;
  options.causal = causal::top_left;
  options.window_left = own::twice(index{4});
  workspace memory;
  rows<float> out(query.rows(), value.cols());
  row_vector<float> lse(query.rows());
  attention_into(query, key, value, out, lse, options, memory,
                 mask_function([](index, index, heed::index i, heed::index j) { return i != j + 3; }));
  return attention(query, key, value, options) + out;
}

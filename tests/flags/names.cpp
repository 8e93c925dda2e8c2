// heed beside names that a C library, the C++ library and Eigen have too: <strings.h> declares a
// function `size_type`.
#include <strings.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <heed/heatmap.hpp>
#include <heed/heed.hpp>

namespace own {
using heed::size_type;
size_type twice(size_type n) { return 2 * n; }
}  // namespace own

using namespace std;
using namespace Eigen;
using namespace heed;

MatrixXf attend(const MatrixXf& query, const MatrixXf& key, const MatrixXf& value) {
  using heed::size_type;
  attention_options options;
  options.causal = causal::top_left;
  options.window_left = own::twice(size_type{4});
  workspace memory;
  rows<float> out(query.rows(), value.cols());
  row_vector<float> lse(query.rows());
  attention_into(query, key, value, out, lse, options, memory,
                 mask_function([](size_type, size_type, heed::size_type i, heed::size_type j) {
                   return i != j + 3;
                 }));
  return attention(query, key, value, options) + out;
}

// wants: the scalar type given to the function is not that of query: cast the matrices, or leave
// the template argument out
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  heed::reference_attention<double>(x, x, x);
}

// wants: a term may be given once
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  const Eigen::Matrix<bool, 2, 2> bools = Eigen::Matrix<bool, 2, 2>::Constant(true);
  const Eigen::Matrix<unsigned char, 2, 2> bytes = Eigen::Matrix<unsigned char, 2, 2>::Constant(1);
  heed::attention(x, x, x, {}, heed::keep(bools), heed::keep(bytes));
}

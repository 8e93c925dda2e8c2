// wants: scaled_softmax takes a real, non-integer type: cast integers, split complex numbers
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXi x = Eigen::MatrixXi::Ones(2, 4);
  heed::scaled_softmax(x);
}

// wants: scaled_softmax takes real numbers with fractions: cast whole numbers, split complex ones
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXi x = Eigen::MatrixXi::Ones(2, 4);
  heed::scaled_softmax(x);
}

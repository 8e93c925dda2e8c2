// wants: scaled_softmax_backward takes real numbers with fractions
#include <heed/heed.hpp>

void wrong() { heed::scaled_softmax_backward(Eigen::MatrixXi(2, 2), Eigen::MatrixXi(2, 2)); }

// wants: scaled_softmax_backward takes Eigen matrices or expressions
#include <heed/heed.hpp>

void wrong() { heed::scaled_softmax_backward(1.0, Eigen::MatrixXd(2, 2)); }

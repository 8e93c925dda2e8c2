// wants: weights and grad_weights must have one scalar type
#include <heed/heed.hpp>

void wrong() { heed::scaled_softmax_backward(Eigen::MatrixXf(2, 2), Eigen::MatrixXd(2, 2)); }

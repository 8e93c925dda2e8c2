// wants: must have one scalar type: cast the others to it
#include <heed/heed.hpp>

void wrong() {
  const heed::rows<float> x = heed::rows<float>::Ones(2, 4);
  const heed::rows<double> grad_out = heed::rows<double>::Ones(2, 4);
  const Eigen::VectorXf lse = Eigen::VectorXf::Ones(2);
  heed::attention_backward(x, x, x, x, lse, grad_out);
}

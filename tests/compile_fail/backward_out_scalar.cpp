// wants: out must have the scalar type of query, or that of the scores
#include <heed/heed.hpp>

void wrong() {
  const heed::rows<float> x = heed::rows<float>::Ones(2, 4);
  const heed::rows<double> out = heed::rows<double>::Ones(2, 4);
  const Eigen::VectorXf lse = Eigen::VectorXf::Ones(2);
  heed::attention_backward(x, x, x, out, lse, x);
}

// wants: not a term of attention, or one of another scalar type
#include <heed/heed.hpp>

void wrong() {
  const heed::rows<float> x = heed::rows<float>::Ones(2, 4);
  const Eigen::VectorXf numbers = Eigen::VectorXf::Ones(2);
  heed::attention(x, x, x, {}, heed::grad_lse(numbers));
}

// wants: query, latent and the weights must have one scalar type: cast the others to it
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXd x = Eigen::MatrixXd::Ones(2, 4);
  heed::latent_attention(x, x, heed::latent_weights<float>());
}

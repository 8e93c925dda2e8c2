// wants: query, key, value and out must have one scalar type: cast the others to it
#include <heed/heed.hpp>

void wrong() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4), beta = Eigen::MatrixXf::Ones(2, 1);
  const Eigen::MatrixXd y = Eigen::MatrixXd::Ones(2, 4);
  Eigen::MatrixXf out(2, 4);
  heed::workspace memory;
  heed::multi_head_delta_rule_into(heed::view(x), heed::view(y), heed::view(x), heed::view(beta),
                                   heed::writable_view(out), {}, memory);
}

#include <heed/isa.hpp>
#include <heed/types.hpp>
#include <heed/version.hpp>

#include <type_traits>

#include "catch.hpp"

TEST_CASE("sizes are 64 bits wide") { CHECK(sizeof(heed::size_type) == 8); }

TEST_CASE("rows of a matrix are one after the other") {
  heed::rows<float> m(2, 3);
  m << 1, 2, 3, 4, 5, 6;
  CHECK(m.data()[1] == 2);
  CHECK((heed::rows<float, 3>::ColsAtCompileTime) == 3);
  CHECK((heed::rows<float, 1>(4, 1).innerStride()) == 1);
  CHECK(heed::row_vector<float>(4).innerStride() == 1);
}

TEST_CASE("16-bit numbers are summed in float, all others in their own type") {
  CHECK((std::is_same<heed::accumulator_t<Eigen::half>, float>::value));
  CHECK((std::is_same<heed::accumulator_t<Eigen::bfloat16>, float>::value));
  CHECK((std::is_same<heed::accumulator_t<float>, float>::value));
  CHECK((std::is_same<heed::accumulator_t<double>, double>::value));
  CHECK((std::is_same<heed::accumulator_t<long double>, long double>::value));
}

TEST_CASE("the version is three numbers") {
  CHECK(HEED_VERSION_MAJOR >= 0);
  CHECK(HEED_VERSION_MINOR >= 0);
  CHECK(HEED_VERSION_PATCH >= 0);
}

// wants: Dv is not the number of columns of value; Dv is Dk unless it is given
#include <heed/heed.hpp>

void wrong() {
  const heed::rows<float, 4> x(2, 4);
  const heed::rows<float, 3> value(2, 3);
  heed::attention<float, 4>(x, x, value);
}

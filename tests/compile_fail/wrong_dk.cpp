// wants: Dk is not the number of columns of query and key
#include <heed/heed.hpp>

void wrong() {
  const heed::rows<float, 4> x(2, 4);
  heed::attention<float, 8>(x, x, x);
}

// wants: query and key have different head_dim (columns)
#include <heed/heed.hpp>

void wrong() {
  const heed::rows<float, 4> query(2, 4);
  const heed::rows<float, 5> key(2, 5);
  heed::attention(query, key, key);
}

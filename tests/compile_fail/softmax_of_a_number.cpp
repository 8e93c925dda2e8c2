// wants: scaled_softmax takes an Eigen matrix or expression
#include <heed/heed.hpp>

void wrong() { heed::scaled_softmax(3.0f); }

// The bursts that a core's peak is measured with, for bursts.sh to read what a compiler makes of
// them.
#include "../../bench/peak.hpp"

bench::burst single(heed::isa target) { return bench::fma_burst<float>(target); }
bench::burst wide(heed::isa target) { return bench::fma_burst<double>(target); }
void (*pairs)(long) = bench::bf16_burst;

#pragma once

// The families of benchmarks, one file each. `everything`: all sizes, for a run that filters; else
// a selection that takes two minutes.

namespace bench {

void register_forward(bool everything);
void register_layout(bool everything);
void register_small(bool everything);
void register_terms(bool everything);
void register_decode(bool everything);
void register_projection(bool everything);
void register_linear(bool everything);
void register_backward(bool everything);
void register_mixed(bool everything);
void register_cache(bool everything);

}  // namespace bench

// Options by name, as C++20 allows it: the members that are not named are not missing.
#include <heed/heatmap.hpp>
#include <heed/heed.hpp>

heed::attention_options attention() { return {.causal = heed::causal::bottom_right}; }
heed::attention_options attention_target() {
  return {.execution = {.target = heed::isa::baseline}};
}
heed::linear_attention_options linear() { return {.feature_map = heed::feature_map::none}; }
heed::delta_rule_options delta() { return {.chunk = 16}; }
heed::rwkv7_options recurrence() { return {.execution = {.threads = 2}}; }
heed::causal_conv_options conv() { return {.execution = {.threads = 2}}; }
heed::selective_scan_options scan() { return {.execution = {.threads = 2}}; }
heed::rope_options rope() { return {.base = 500000}; }
heed::heatmap_options heatmap() { return {.title = "Weights"}; }

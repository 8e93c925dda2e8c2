#include "foreign_headers.hpp"

#include HEED_SYSTEM

#include <heed/heatmap.hpp>
#include <heed/heed.hpp>

heed::rows<float> attend(const heed::rows<float>& query, const heed::rows<float>& key,
                         const heed::rows<float>& value) {
  heed::attention_options options;
  options.causal = heed::causal::top_left;
  return heed::attention(query, key, value, options,
                         heed::mask_function([](heed::size_type, heed::size_type, heed::size_type i,
                                                heed::size_type j) { return i + j > 0; }));
}
std::string page(const heed::rows<float>& weights) { return heed::heatmap_html(weights, {}, {}); }

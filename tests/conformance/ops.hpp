#pragma once

#include "case.hpp"

namespace conformance {

// Each op runs a case through every path of the library that can compute it, and adds a sentence
// for each that is wrong.
void run_attention(const test_case& c, failures& failed);
void run_gradient(const test_case& c, failures& failed);
void run_merge(const test_case& c, failures& failed);
void run_varlen(const test_case& c, failures& failed);
void run_gated_linear(const test_case& c, failures& failed);
void run_gated_delta(const test_case& c, failures& failed);
void run_rwkv7(const test_case& c, failures& failed);
void run_selective_scan(const test_case& c, failures& failed);
void run_onnx_attention(const test_case& c, failures& failed);
void run_onnx_softmax(const test_case& c, failures& failed);
void run_onnx_rotary_embedding(const test_case& c, failures& failed);
void run_onnx_flex_attention(const test_case& c, failures& failed);
void run_onnx_linear_attention(const test_case& c, failures& failed);
void run_onnx_causal_conv(const test_case& c, failures& failed);

}  // namespace conformance

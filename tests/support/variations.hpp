#pragma once

#include <string>

#include "example.hpp"

namespace testing {

struct sizes {
  size_type n_q, n_kv, d_k, d_v;
};

/// The sizes at which a tile, a vector or a loop can go wrong: nothing, one, and one less, as many
/// and one more than the vector lanes (4 to 16) and than the blocks of 48 queries and 64 or 128
/// keys; d_v that is not d_k.
inline std::vector<sizes> edge_sizes() {
  return {{0, 5, 8, 8},     {3, 0, 8, 8},       {1, 1, 1, 1},     {1, 129, 64, 64}, {2, 33, 16, 16},
          {7, 8, 3, 5},     {8, 9, 16, 1},      {9, 7, 17, 31},   {15, 16, 4, 4},   {16, 17, 15, 8},
          {17, 15, 64, 33}, {47, 49, 32, 32},   {48, 48, 64, 64}, {49, 47, 7, 16},  {31, 65, 40, 3},
          {128, 64, 8, 8},  {129, 128, 16, 24}, {97, 130, 65, 65}};
}

/// Every way to see keys by position: all, both alignments of causal, a window.
inline std::vector<heed::attention_options> position_options() {
  std::vector<heed::attention_options> all(4);
  all[1].causal = heed::causal::bottom_right;
  all[2].causal = heed::causal::top_left;
  all[3].window_left = 3;
  all[3].window_right = 5;
  return all;
}

/// Calls visit(example, name) with random inputs under each option and term, then under many at
/// once.
template <typename Scalar, typename Visit>
void for_each_variation(const sizes& s, const Visit& visit) {
  using example_type = example<Scalar>;
  using acc = typename example_type::accumulator;
  const example_type plain(s.n_q, s.n_kv, s.d_k, s.d_v, 7);
  const auto with = [&](const std::string& name, const auto& change) {
    example_type e = plain;
    change(e);
    visit(e, name);
  };
  const auto add_bias = [&](example_type& e) { e.bias = random_rows<acc>(s.n_q, s.n_kv, 11); };
  const auto add_keep = [&](example_type& e) {
    e.keep = random_mask(s.n_q, s.n_kv, 12);
    if (s.n_q > 2) e.keep.row(s.n_q / 2).setConstant(false);
  };

  visit(plain, "plain");
  with("scale", [](example_type& e) { e.options.scale = 0.3; });
  with("scale 0", [](example_type& e) { e.options.scale = 0; });
  with("softcap", [](example_type& e) { e.options.softcap = 1.5; });
  with("causal top_left", [](example_type& e) { e.options.causal = heed::causal::top_left; });
  with("causal bottom_right",
       [](example_type& e) { e.options.causal = heed::causal::bottom_right; });
  with("window", [](example_type& e) { e.options.window_left = 3, e.options.window_right = 2; });
  with("window from the top left", [](example_type& e) {
    e.options.window_left = 20, e.options.causal = heed::causal::top_left;
  });
  with("window that opens to the right", [](example_type& e) { e.options.window_left = 0; });
  with("keep, one row empty", add_keep);
  with("bias", add_bias);
  with("bias with -infinity", [&](example_type& e) {
    add_bias(e);
    e.bias = random_mask(s.n_q, s.n_kv, 13).select(e.bias, -std::numeric_limits<acc>::infinity());
  });
  with("alibi", [](example_type& e) { e.slopes = heed::row_vector<acc>::Constant(1, acc(0.25)); });
  with("sink", [](example_type& e) { e.sinks = heed::row_vector<acc>::Constant(1, acc(1)); });
  with("key_lengths", [&](example_type& e) { e.key_lengths = {s.n_kv * 2 / 3}; });
  with("everything", [&](example_type& e) {
    add_bias(e);
    add_keep(e);
    e.options.scale = 0.5;
    e.options.softcap = 2;
    e.options.causal = heed::causal::bottom_right;
    e.options.window_left = 40;
    e.slopes = heed::row_vector<acc>::Constant(1, acc(0.125));
    e.sinks = heed::row_vector<acc>::Constant(1, acc(-0.5));
    e.key_lengths = {s.n_kv - s.n_kv / 8};
  });
}

/// Holds a path against the reference at every edge size under every variation.
template <typename Scalar, typename Path>
void check_path_everywhere(const Path& path) {
  for (const sizes& s : edge_sizes())
    for_each_variation<Scalar>(s, [&](const example<Scalar>& e, const std::string& name) {
      INFO(name);
      check_path(e, path);
    });
}

/// NaN and infinity in every key and value that some mask hides from some row: the rows that do not
/// see them must be the same, bit for bit, and the rows that see one must be NaN as they are in the
/// reference.
template <typename Scalar, typename Path>
void check_hidden_values(const Path& path) {
  using acc = typename example<Scalar>::accumulator;
  constexpr size_type n_q = 50, n_kv = 70;
  const acc nan_value = std::numeric_limits<acc>::quiet_NaN(),
            infinity = std::numeric_limits<acc>::infinity();
  const auto check = [&](const std::string& name, size_type j, const auto& change) {
    INFO(name << ", key " << j);
    example<Scalar> clean(n_q, n_kv, 20, 12, 5);
    change(clean);
    const heed::attention_result<Scalar> want = clean.run(path);
    for (const acc poison : {nan_value, infinity}) {
      example<Scalar> e = clean;
      e.key.row(j).setConstant(Scalar(poison));
      e.value.row(j).setConstant(Scalar(poison));
      const heed::attention_result<Scalar> got = e.run(path), reference = e.reference();
      size_type changed = 0;
      for (size_type i = 0; i < n_q; ++i) {
        if (!std::isnan(float(reference.out(i, 0)))) {
          changed += got.out.row(i) != want.out.row(i) || got.lse(i) != want.lse(i);
        } else {
          changed += !std::isnan(float(got.out(i, 0))) ||
                     std::isnan(float(got.lse(i))) != std::isnan(float(reference.lse(i)));
        }
      }
      CHECK(changed == 0);
    }
  };
  for (const size_type j : {size_type(0), size_type(1), size_type(33), size_type(69)}) {
    check("causal top_left", j,
          [](example<Scalar>& e) { e.options.causal = heed::causal::top_left; });
    check("causal bottom_right", j,
          [](example<Scalar>& e) { e.options.causal = heed::causal::bottom_right; });
    check("window", j,
          [](example<Scalar>& e) { e.options.window_left = 5, e.options.window_right = 9; });
    check("keep", j, [&](example<Scalar>& e) { e.keep = random_mask(n_q, n_kv, 3); });
    check("keep hides the key from all", j, [&](example<Scalar>& e) {
      e.keep = mask::Constant(n_q, n_kv, true);
      e.keep.col(j).setConstant(false);
    });
    check("bias", j, [&](example<Scalar>& e) {
      e.bias = random_mask(n_q, n_kv, 4).select(random_rows<acc>(n_q, n_kv, 5), -infinity);
    });
    check("key_lengths", j, [](example<Scalar>& e) { e.key_lengths = {30}; });
  }
}

}  // namespace testing

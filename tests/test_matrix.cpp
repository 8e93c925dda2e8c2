// Every feature alone and with every other, on every path, against the reference in double on the
// same rounded inputs. Where a path does not offer a feature, the call must say so.

#include <heed/heed.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "support/checksum.hpp"
#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/matrix.hpp"
#include "support/refusal.hpp"

using namespace testing::matrix;

namespace {

/// What is right for each sample, and how wrong the reference in Scalar is over all of them: in a
/// few rows alone it may be right by luck.
template <typename Scalar>
struct judged {
  std::vector<outputs<testing::wider_t<Scalar>>> exact;
  testing::reference_error error;
};
/// reference(n, sample, inputs, numbers) -> outputs, in the type of the inputs.
template <typename Scalar, typename Reference>
judged<Scalar> judge(const std::vector<sample<Scalar>>& samples, const Reference& reference) {
  using wide = testing::wider_t<Scalar>;
  judged<Scalar> right;
  for (std::size_t n = 0; n < samples.size(); ++n) {
    const sample<Scalar>& one = samples[n];
    right.exact.push_back(
        reference(n, one, one.in.template cast<wide>(), one.s.numbers.template cast<wide>()));
    const outputs<Scalar> same =
        reference(n, one, one.in, one.s.numbers.template cast<heed::accumulator_t<Scalar>>());
    right.error.out =
        (std::max)(right.error.out, testing::max_error(same.out, right.exact.back().out));
    right.error.lse =
        (std::max)(right.error.lse, testing::max_error(same.lse, right.exact.back().lse));
  }
  return right;
}

const auto reference_on_tensors = [](std::size_t, const auto& one, const auto& in,
                                     const auto& numbers) {
  outputs<typename std::decay_t<decltype(in)>::scalar> result(in);
  one.s.with_terms(numbers, path::tensors, [&](const auto&... terms) {
    heed::reference_multi_head_attention_into(in.query_view(), in.key_view(), in.value_view(),
                                              result.out_view(), result.lse_view(), one.s.options,
                                              terms...);
  });
  return result;
};

/// Appends the keys of a setup in pieces that end anywhere, sequence by sequence.
template <typename Scalar, typename Append>
void append_in_pieces(const setup& s, const inputs<Scalar>& in, const Append& append) {
  const heed::size_type cuts[] = {0, s.shape.n_kv / 5, s.shape.n_kv / 2, s.shape.n_kv};
  for (int piece = 0; piece < 3; ++piece)
    for (heed::size_type b = 0; b < batch; ++b) {
      const heed::size_type first = (std::min)(cuts[piece], s.lengths[std::size_t(b)]),
                            end = (std::min)(cuts[piece + 1], s.lengths[std::size_t(b)]);
      const auto rows_of = [&](tensor_view<const Scalar> all) {
        all.data += b * all.batch_stride + first * all.row_stride;
        all.batch = 1;
        all.rows = end - first;
        return all;
      };
      append(b, rows_of(in.key_view()), rows_of(in.value_view()));
    }
}

template <typename Scalar, typename Stored>
heed::kv_cache<Stored> make_cache(const setup& s, const inputs<Scalar>& in) {
  heed::kv_cache<Stored> cache(batch, in.kv_heads, in.d_k, in.d_v, 16);
  append_in_pieces(s, in, [&](heed::size_type b, const auto& key, const auto& value) {
    cache.append(b, key, value);
  });
  return cache;
}
/// A paged cache of the two sequences 0 and 1, whose pages alternate.
template <typename Scalar, typename Stored>
heed::paged_kv_cache<Stored> make_paged_cache(const setup& s, const inputs<Scalar>& in) {
  constexpr heed::size_type page_rows = 24;
  heed::paged_kv_cache<Stored> cache(2 * (s.shape.n_kv / page_rows + 2), page_rows, in.kv_heads,
                                     in.d_k, in.d_v);
  for (heed::size_type b = 0; b < batch; ++b) cache.add_sequence();
  append_in_pieces(s, in, [&](heed::size_type b, const auto& key, const auto& value) {
    cache.append(b, key, value);
  });
  return cache;
}
const std::vector<heed::size_type> both_sequences{0, 1};

template <typename Scalar>
void check_right(const std::string& name, const outputs<Scalar>& got, const judged<Scalar>& right,
                 std::size_t n) {
  testing::checksum(name + ": out", got.out);
  testing::checksum(name + ": lse", got.lse);
  testing::check_error(got.out, right.exact[n].out, right.error.out);
  testing::check_error(got.lse, right.exact[n].lse, right.error.lse, 1);
}

/// Runs a path on every instruction set, and with the best one on three threads, which must change
/// nothing.
template <typename Scalar, typename Run>
void check_path(const char* name, const sample<Scalar>& one, const judged<Scalar>& right,
                std::size_t n, path kind, const Run& run) {
  heed::workspace memory;
  const auto numbers = one.s.numbers.template cast<heed::accumulator_t<Scalar>>();
  const auto run_with = [&](heed::isa target, int threads) {
    outputs<Scalar> got(one.in);
    heed::attention_options options = one.s.options;
    options.execution.target = target;
    options.execution.threads = threads;
    one.s.with_terms(numbers, kind,
                     [&](const auto&... terms) { run(got, options, memory, terms...); });
    return got;
  };
  INFO(name << ": " << one.name());
  for (const heed::isa target : testing::isas()) {
    INFO("on " << testing::name_of(target));
    check_right(name + (": " + one.name() + ": ") + testing::name_of(target), run_with(target, 1),
                right, n);
  }
  INFO("on three threads");
  const outputs<Scalar> alone = run_with(heed::best_isa(), 1),
                        three = run_with(heed::best_isa(), 3);
  CHECK(testing::max_error(three.out, alone.out) == 0);
  CHECK(testing::max_error(three.lse, alone.lse) == 0);
}

template <typename Scalar>
void check_tensors(const sample<Scalar>& one, const judged<Scalar>& right, std::size_t n) {
  const inputs<Scalar>& in = one.in;
  if (!one.s.features.has(feature::strides)) {
    check_path("tensors", one, right, n, path::tensors, [&](outputs<Scalar>& got, auto&&... rest) {
      heed::multi_head_attention_into(in.query_view(), in.key_view(), in.value_view(),
                                      got.out_view(), got.lse_view(), rest...);
    });
    return;
  }
  const spread<Scalar> query(in.query_view()), key(in.key_view()), value(in.value_view());
  check_path("strided tensors", one, right, n, path::tensors,
             [&](outputs<Scalar>& got, auto&&... rest) {
               const spread<Scalar> out(got.out_view());
               heed::multi_head_attention_into(query.view, key.view, value.view, out.view,
                                               got.lse_view(), rest...);
               copy(out.view, got.out_view());
             });
}

/// The tiled form in plain Eigen, which knows neither instruction sets nor threads.
template <typename Scalar>
void check_streaming(const sample<Scalar>& one, const judged<Scalar>& right, std::size_t n) {
  INFO("streaming: " << one.name());
  const inputs<Scalar>& in = one.in;
  outputs<Scalar> got(in);
  one.s.with_terms(one.s.numbers.template cast<heed::accumulator_t<Scalar>>(), path::tensors,
                   [&](const auto&... terms) {
                     heed::detail::streaming(heed::detail::make_problem<Scalar>(
                         "streaming", in.query_view(), in.key_view(), in.value_view(),
                         got.out_view(), got.lse_view(), one.s.options, terms...));
                   });
  check_right("streaming: " + one.name(), got, right, n);
}

template <typename Scalar>
void check_ragged(const sample<Scalar>& one, const judged<Scalar>& right, std::size_t n) {
  using Acc = heed::accumulator_t<Scalar>;
  const inputs<Scalar>& in = one.in;
  const std::vector<heed::size_type> query_starts{0, in.n_q, 2 * in.n_q},
      key_starts{0, one.s.lengths[0], one.s.lengths[0] + one.s.lengths[1]};
  const packed<Scalar> query(in.query_view(), query_starts), key(in.key_view(), key_starts),
      value(in.value_view(), key_starts);
  const auto run = [&](outputs<Scalar>& got, const heed::attention_options& options,
                       heed::workspace& memory, const auto&... terms) {
    packed<Scalar> out(got.out_view(), query_starts);
    packed<Acc> lse(got.lse_view(), query_starts);
    heed::ragged_attention_into(query.view, key.view, value.view, out.view, lse.view, query_starts,
                                key_starts, options, memory, terms...);
    out.unpack(got.out_view(), query_starts);
    lse.unpack(got.lse_view(), query_starts);
  };
  if (!one.s.features.has_any(feature::keep, feature::keep_keys, feature::keep_bits, feature::bias,
                              feature::bias_infinite, feature::blocks,
                              feature::mask_function_in_blocks))
    return check_path("ragged", one, right, n, path::ragged, run);
  INFO("ragged: " << one.name());
  outputs<Scalar> got(in);
  heed::workspace memory;
  one.s.with_terms(one.s.numbers.template cast<Acc>(), path::ragged, [&](const auto&... terms) {
    testing::check_refused([&] { run(got, one.s.options, memory, terms...); },
                           {"heed::ragged_attention_into"});
  });
  CHECK((got.out.array() == Scalar(-7)).all());
}

/// Both kinds of cache, which hold the same numbers as Stored. What is right is what the reference
/// makes of what they hold.
template <typename Stored, typename Scalar>
void check_caches(const std::vector<sample<Scalar>>& samples, const judged<Scalar>& on_tensors) {
  std::vector<heed::kv_cache<Stored>> caches;
  for (const sample<Scalar>& one : samples)
    caches.push_back(make_cache<Scalar, Stored>(one.s, one.in));
  const judged<Scalar> right =
      judge(samples, [&](std::size_t n, const auto& one, const auto& in, const auto& numbers) {
        outputs<typename std::decay_t<decltype(in)>::scalar> result(in);
        one.s.with_terms(numbers, path::cache, [&](const auto&... terms) {
          heed::reference_cached_attention_into(in.query_view(), caches[n], result.out_view(),
                                                result.lse_view(), one.s.options, terms...);
        });
        return result;
      });
  for (std::size_t n = 0; n < samples.size(); ++n) {
    const sample<Scalar>& one = samples[n];
    // functions and dropout count otherwise in a cache: tokens of the sequence
    if (std::is_same<Stored, Scalar>::value &&
        !one.s.features.has_any(feature::score_function, feature::mask_function,
                                feature::mask_function_in_blocks, feature::weight_function,
                                feature::dropout)) {
      INFO("what is right: " << one.name());
      CHECK(testing::max_error(right.exact[n].out, on_tensors.exact[n].out) == 0);
      CHECK(testing::max_error(right.exact[n].lse, on_tensors.exact[n].lse) == 0);
    }
    const auto check = [&](const char* name, const auto& cache) {
      check_path(name, one, right, n, path::cache, [&](outputs<Scalar>& got, auto&&... rest) {
        heed::cached_attention_into(one.in.query_view(), cache, got.out_view(), got.lse_view(),
                                    rest...);
      });
    };
    check("kv_cache", caches[n]);
    const auto pages = make_paged_cache<Scalar, Stored>(one.s, one.in);
    check("paged_kv_cache", pages.batch(both_sequences));
  }
}

/// The sizes of one combination: tensors, the streaming form, ragged batches, and caches of each
/// type.
template <typename Scalar, typename... Stored>
void check_combination(const combination& features) {
  std::vector<sample<Scalar>> samples;
  const std::size_t shapes = features.a == feature::plain ? std::size(all_sizes) : sizes_of_pairs;
  for (std::size_t n = 0; n < shapes; ++n) samples.emplace_back(features, all_sizes[n]);
  const judged<Scalar> right = judge(samples, reference_on_tensors);
  for (std::size_t n = 0; n < samples.size(); ++n) {
    check_tensors(samples[n], right, n);
    check_streaming(samples[n], right, n);
    check_ragged(samples[n], right, n);
  }
  (check_caches<Stored>(samples, right), ...);
}

}  // namespace

// Every path and the reference start from one problem, so a term that is missing there is missing
// everywhere.
TEST_CASE("each option and term changes what the reference computes") {
  const auto right = [](feature f) {
    const sample<double> one({feature::plain, f}, all_sizes[0]);
    return reference_on_tensors(0, one, one.in, one.s.numbers.cast<double>());
  };
  const outputs<double> plain = right(feature::plain);
  for (unsigned f = unsigned(feature::scale); f < unsigned(feature::grouped_heads); ++f) {
    INFO(names[f]);
    CHECK(testing::max_error(right(feature(f)).out, plain.out) > 0);
  }
}
TEST_CASE("float: features in pairs on every path") {
  for_each_combination(combined::in_pairs, check_combination<float, float, std::int8_t>);
}
TEST_CASE("bfloat16: features in pairs on every path") {
  for_each_combination(combined::in_pairs, check_combination<Eigen::bfloat16, Eigen::bfloat16>);
}
TEST_CASE("half and double: features one by one on every path") {
  for_each_combination(combined::alone, check_combination<Eigen::half, Eigen::half>);
  for_each_combination(combined::alone, check_combination<double, double>);
}
TEST_CASE("caches of 8 and 4 bits: features one by one") {
  for_each_combination(combined::alone,
                       check_combination<float, heed::float8_e4m3, heed::float8_e5m2,
                                         heed::int8_block, heed::int4_block>);
}
TEST_CASE("queries of one type on caches of another: features one by one") {
  for_each_combination(combined::alone, check_combination<float, Eigen::bfloat16, Eigen::half>);
  for_each_combination(combined::alone,
                       check_combination<Eigen::bfloat16, float, Eigen::half, std::int8_t>);
  for_each_combination(combined::alone,
                       check_combination<Eigen::half, float, Eigen::bfloat16, std::int8_t>);
}

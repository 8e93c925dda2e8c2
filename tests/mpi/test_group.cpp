// mpirun -n R heed_test_group [faults]: what else a group of ranks does, what it refuses, and what
// it sends.

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "counted.hpp"
#include "problem.hpp"

using namespace testing;

namespace {

template <typename Scalar>
void exchange_case(ranks& all, const sizes& s, const attention_options& options, const features& f,
                   layout kind) {
  using Acc = accumulator_t<Scalar>;
  const problem<Scalar> p(s);
  const int rank = all.rank();
  const sequence_shards queries = shards_of(kind, all.size(), s.n_q),
                        keys = shards_of(kind, all.size(), s.n_kv);
  tensor<Scalar> whole(s.batch, s.heads, s.n_q, s.d_v);
  tensor<Acc> whole_lse(s.batch, s.heads, s.n_q, 1);
  heed::workspace memory;
  with_terms(f, p.terms, s.n_kv, [&](const auto&... given) {
    heed::multi_head_attention_into(p.query.view(), p.key.view(), p.value.view(), whole.view(),
                                    whole_lse.view(), options, memory, given...);
  });
  const tensor<Scalar> q = p.query.shard(queries, rank), k = p.key.shard(keys, rank),
                       v = p.value.shard(keys, rank);
  tensor<Scalar> out(s.batch, s.heads, q.n, s.d_v);
  tensor<Acc> lse(s.batch, s.heads, q.n, 1);
  with_terms(f, p.terms, s.n_kv, [&](const auto&... given) {
    heed::exchange_attention_into(all.group(), queries, keys, q.view(), k.view(), v.view(),
                                  out.view(), lse.view(), options, memory, given...);
  });
  all.check(
      same_bits(out, whole.shard(queries, rank)) && same_bits(lse, whole_lse.shard(queries, rank)),
      std::string("exchange: not the bits of one rank: ") + type_name<Scalar>() + ", " + f.name +
          ", " + name_of(kind));
}

void exchange_cases(ranks& all) {
  const size_type ranks_ = all.size();
  const features some{"alibi, sinks, functions, keep, dropout",
                      true,
                      true,
                      true,
                      true,
                      true,
                      true,
                      false,
                      false,
                      true,
                      false};
  attention_options causally;
  causally.causal = causal::bottom_right;
  exchange_case<float>(all, {2, 2 * ranks_, ranks_, 61, 61, 16, 8}, causally, some, layout::zigzag);
  exchange_case<float>(all, {1, 2 * ranks_, 1, 20, 61, 16, 8}, {}, no_terms, layout::uneven);
  exchange_case<Eigen::bfloat16>(all, {1, ranks_, ranks_, 61, 61, 16, 8}, causally, some,
                                 layout::contiguous);
}

/// Appends tokens to both sequences of a cache.
template <typename Cache>
void append(Cache& cache, const tensor<float>& k, const tensor<float>& v) {
  for (size_type b = 0; b < 2; ++b) {
    const auto of = [&](const tensor<float>& x) {
      tensor_view<const float> one = x.view();
      one.data += b * one.batch_stride;
      one.batch = 1;
      return one;
    };
    cache.append(b, of(k), of(v));
  }
}
const size_type cached = 700;  // tokens

/// Decoding against a cache on all ranks, and against the whole on one: both are sums of the same
/// numbers, the cache's own roundings are the same, and so twice the error of the reference on the
/// cache, in float, is the measure.
template <typename Cache>
void decode_case(ranks& all, const Cache& whole, const Cache& part, layout kind, size_type n_q,
                 size_type window, const std::string& what) {
  const size_type heads = 6;
  const sequence_shards shards = shards_of(kind, all.size(), cached);
  const tensor<float> q(2, heads, n_q, 32, 1);
  attention_options options;
  options.causal = causal::bottom_right;
  options.window_left = window;
  const auto sinks = heed::row_vector<float>(heed::row_vector<float>::LinSpaced(heads, -1, 3)),
             slopes = heed::row_vector<float>(heed::row_vector<float>::LinSpaced(heads, 0.f, 0.1f));
  const auto twice = [&](const tensor<float>& x) { return x.cast<double>(); };
  tensor<float> same(2, heads, n_q, 32), out(same), again(same);
  tensor<float> same_lse(2, heads, n_q, 1), lse(same_lse);
  tensor<double> exact(2, heads, n_q, 32), exact_lse(2, heads, n_q, 1);
  heed::workspace memory;
  heed::reference_cached_attention_into(q.view(), whole, same.view(), same_lse.view(), options,
                                        heed::sinks(sinks), heed::alibi(slopes),
                                        heed::score_function(fade));
  const auto wide_sinks = heed::row_vector<double>(sinks.cast<double>()),
             wide_slopes = heed::row_vector<double>(slopes.cast<double>());
  heed::reference_cached_attention_into(twice(q).view(), whole, exact.view(), exact_lse.view(),
                                        options, heed::sinks(wide_sinks), heed::alibi(wide_slopes),
                                        heed::score_function(fade));
  const auto run = [&](tensor<float>& to) {
    if (kind == layout::contiguous)  // in the order of the ranks
      heed::sharded_cache_attention_into(all.group(), q.view(), part, to.view(), lse.view(),
                                         options, memory, heed::sinks(sinks), heed::alibi(slopes),
                                         heed::score_function(fade));
    else
      heed::sharded_cache_attention_into(all.group(), shards, q.view(), part, to.view(), lse.view(),
                                         options, memory, heed::sinks(sinks), heed::alibi(slopes),
                                         heed::score_function(fade));
  };
  run(out);
  run(again);
  const std::string name = "decoding, " + what + ", " + name_of(kind) + ", " + std::to_string(n_q) +
                           " queries, window " + std::to_string(window);
  all.check_at_most(max_error(out, exact), bound(same, exact), name + ": out");
  all.check_at_most(max_error(lse, exact_lse), bound(same_lse, exact_lse, 1), name + ": lse");
  all.check(same_bits(out, again), name + ": other bits the second time");
  tensor<float> first = out;
  share(first);
  all.check(same_bits(out, first), name + ": not the bits of rank 0");
}

void decode_cases(ranks& all) {
  const tensor<float> k(2, 2, cached, 32, 2), v(2, 2, cached, 32, 3);
  const auto shard_of = [&](const tensor<float>& x, layout kind) {
    return x.shard(shards_of(kind, all.size(), cached), all.rank());
  };
  const auto plain = [&](auto number, layout kind, size_type n_q, size_type window,
                         const char* what) {
    heed::kv_cache<decltype(number)> whole(2, 2, 32, 32), part(2, 2, 32, 32);
    append(whole, k, v);
    append(part, shard_of(k, kind), shard_of(v, kind));
    decode_case(all, whole, part, kind, n_q, window, what);
  };
  plain(float(), layout::contiguous, 1, -1, "float");
  plain(float(), layout::zigzag, 3, 100, "float");
  plain(float(), layout::uneven, 90, 300, "float");  // shared merging
  plain(Eigen::bfloat16(), layout::zigzag, 1, -1, "bfloat16");
  plain(std::int8_t(), layout::uneven, 2, -1, "int8");
  plain(heed::int4_block(), layout::zigzag, 1, -1, "int4 blocks");
  heed::paged_kv_cache<float> whole(100, 16, 2, 32, 32), part(100, 16, 2, 32, 32);
  std::vector<size_type> both;
  for (int b = 0; b < 2; ++b) part.add_sequence(), both.push_back(whole.add_sequence());
  append(whole, k, v);
  append(part, shard_of(k, layout::uneven), shard_of(v, layout::uneven));
  decode_case(all, whole.batch(both), part.batch(both), layout::uneven, 5, 40, "pages");
}

void token_cases(ranks& all) {
  const size_type n = 37;
  const int root = all.size() - 1;
  const bool here = all.rank() == root;
  for (const layout kind : {layout::contiguous, layout::zigzag, layout::uneven}) {
    const sequence_shards shards = shards_of(kind, all.size(), n);
    const tensor<double> whole(2, 3, n, 5, 1);
    tensor<double> mine(2, 3, shards.rows(all.rank()), 5), back(2, 3, n, 5);
    // Heads side by side: neither is one piece of memory in the order of messages.
    const auto side_by_side = [](tensor<double>& x) {
      return heed::bnhd(x.data.data(), x.b, x.n, x.h, x.d);
    };
    heed::scatter_tokens_into(all.group(), shards,
                              here ? whole.view() : tensor_view<const double>(), side_by_side(mine),
                              root);
    const tensor<double> wanted = whole.shard(shards, all.rank());
    bool good = true;
    for (size_type h = 0; h < 3; ++h)
      for (size_type i = 0; i < mine.n; ++i)
        good = good && side_by_side(mine)(1, h, i, 4) == wanted.view()(1, h, i, 4);
    all.check(good, std::string("scattered tokens, ") + name_of(kind));
    heed::gather_tokens_into(all.group(), shards, side_by_side(mine),
                             here ? back.view() : tensor_view<double>(), root);
    all.check(!here || same_bits(back, whole), std::string("gathered tokens, ") + name_of(kind));
  }
}

void layer_cases(ranks& all) {
  using rows = heed::rows<float>;
  const size_type n = 50;
  const sequence_shards shards = shards_of(layout::zigzag, all.size(), n);
  const tensor<float> tokens(1, 1, n, 12, 1), mine = tokens.shard(shards, all.rank());
  const tensor<float> weights(1, 1, 12, 40, 2);
  const rows x = Eigen::Map<const rows>(tokens.data.data(), n, 12),
             my_x = Eigen::Map<const rows>(mine.data.data(), mine.n, 12),
             w = Eigen::Map<const rows>(weights.data.data(), 12, 40), w_q = w.leftCols(16),
             w_k = w.middleCols(16, 8), w_v = w.middleCols(24, 8),
             w_o = Eigen::Map<const rows>(weights.data.data(), 16, 12);
  attention_options options;
  options.causal = causal::bottom_right;
  const auto compare = [&](const rows& got, const rows& of_one_rank, const char* what) {
    tensor<float> whole(1, 1, n, of_one_rank.cols()), part(1, 1, mine.n, of_one_rank.cols());
    std::copy_n(of_one_rank.data(), whole.data.size(), whole.data.begin());
    std::copy_n(got.data(), part.data.size(), part.data.begin());
    // Weights round by n ulps, values and projections by the depth of their sums, 12.
    all.check_at_most(max_error(part, whole.shard(shards, all.rank())),
                      64 * 1.2e-7L * magnitude(whole), what);
  };
  compare(heed::ring_self_attention(all.group(), shards, my_x, w_k, w_k, w_v, options),
          heed::self_attention(x, w_k, w_k, w_v, options), "self-attention");
  compare(heed::ring_multi_head_self_attention(all.group(), shards, my_x, w_q, w_k, w_v, w_o,
                                               {4, 2}, options),
          heed::multi_head_self_attention(x, w_q, w_k, w_v, w_o, {4, 2}, options),
          "multi-head self-attention");
}

/// Bytes that a rank sends are those of the blocks that others see.
void message_cases(ranks& all) {
  const size_type own = 64, later = all.size() - 1 - all.rank(),
                  neighbours = (later > 0) + (all.rank() > 0);
  const sequence_shards shards = sequence_shards::contiguous(all.group(), own);
  const tensor<float> x(1, 1, own, 16, 1);
  const auto blocks = [&](const attention_options& options) {
    tensor<float> out(1, 1, own, 16);
    heed::workspace memory;
    heed::group_times times;
    all.group().measure(&times);
    heed::ring_attention_into(all.group(), shards, shards, x.view(), x.view(), x.view(), out.view(),
                              {}, options, memory);
    all.group().measure(nullptr);
    all.check(times.computing > 0 && times.waiting >= 0 && times.looking >= 0, "times");
    return times.bytes_sent / (own * 16 * 2 * 4);
  };
  attention_options causally, sliding, both_sides;
  causally.causal = sliding.causal = causal::bottom_right;
  sliding.window_left = 50;
  both_sides.window_left = both_sides.window_right = 50;
  all.check(blocks({}) == all.size() - 1, "blocks sent: to all others");
  all.check(blocks(causally) == later, "blocks sent, causal: to those after");
  all.check(blocks(sliding) == (later > 0), "blocks sent, sliding: to the next");
  all.check(blocks(both_sides) == neighbours, "blocks sent, window: to the neighbours");
}

/// Many rows: more than are merged at a time, and work that threads share.
void long_case(ranks& all) {
  const sizes s{1, 64, 2, 500 * all.size(), 900, 8, 8};
  const sequence_shards queries = sequence_shards::contiguous(all.size(), s.n_q),
                        keys = shards_of(layout::zigzag, all.size(), s.n_kv);
  const tensor<float> q(1, s.heads, 500, 8, 1), k(1, 2, s.n_kv, 8, 2), v(1, 2, s.n_kv, 8, 3);
  const tensor<float> my_k = k.shard(keys, all.rank()), my_v = v.shard(keys, all.rank());
  tensor<float> out(1, s.heads, 500, 8), some(1, s.heads, 2, 8);
  tensor<double> exact(1, s.heads, 2, 8);
  heed::workspace memory;
  heed::ring_attention_into(all.group(), queries, keys, q.view(), my_k.view(), my_v.view(),
                            out.view(), {}, {}, memory);
  const auto ends = [&](auto x) {  // the first and the last row
    x.rows = 2, x.row_stride *= 499;
    return x;
  };
  const tensor<double> wide_q = q.cast<double>(), wide_k = k.cast<double>(),
                       wide_v = v.cast<double>();
  heed::reference_multi_head_attention_into(ends(wide_q.view()), wide_k.view(), wide_v.view(),
                                            exact.view(), {}, {});
  heed::reference_multi_head_attention_into(ends(q.view()), k.view(), v.view(), some.view(), {},
                                            {});
  const long double allowed = bound(some, exact);
  tensor<float> got(1, s.heads, 2, 8);
  for (size_type h = 0; h < s.heads; ++h)
    for (size_type i = 0; i < 2; ++i)
      for (size_type c = 0; c < 8; ++c) got.view()(0, h, i, c) = out.view()(0, h, 499 * i, c);
  all.check_at_most(max_error(got, exact), allowed, "many rows");
}

void refusals(ranks& all) {
  const size_type n = 16;
  const bool odd = all.last();
  heed::process_group& group = all.group();
  const sequence_shards shards = sequence_shards::contiguous(group, n);
  const tensor<float> q(1, 2, n, 16, 1), narrow(1, 2, n, 8, 3), more(1, 2, n + 1, 16, 1);
  tensor<float> out(1, 2, n, 16), lse(1, 2, n, 1);
  const tensor<float> before = out;
  heed::workspace memory;
  const std::string on_last = "(on rank " + std::to_string(all.size() - 1) + ")";
  const auto ring = [&](const tensor<float>& key, const attention_options& options,
                        const auto&... terms) {
    heed::ring_attention_into(group, shards, shards, q.view(), key.view(), q.view(), out.view(), {},
                              options, memory, terms...);
  };
  all.check_refused({"heed::ring_attention_into", "head_dim", "8", "16", on_last},
                    [&] { ring(odd ? narrow : q, {}); });
  all.check_refused({"heed::ring_attention_into: key: rows 17", "16", on_last},
                    [&] { ring(odd ? more : q, {}); });
  attention_options wrong;
  wrong.window_left = -7;
  all.check_refused({"window_left", "-7", on_last},
                    [&] { ring(q, odd ? wrong : attention_options()); });
  const std::vector<std::uint8_t> bytes(16, 1);
  all.check_refused({"n_kv 16", on_last}, [&] {
    if (all.size() == 1)
      heed::detail::fail("n_kv 16 (on rank 0)");  // the whole is what one rank has
    ring(q, {}, heed::when(odd, heed::keep(heed::bhnd(bytes.data(), 1, 1, 1, 16))));
  });
  all.check_refused({"blocks"}, [&] {
    const heed::block_mask mask(1, 1, n, n, 4, 4);
    ring(q, {}, heed::blocks(mask));
  });
  all.check_refused({"weight_function"}, [&] {
    const auto same = [](float weight, size_type, size_type, size_type, size_type) {
      return weight;
    };
    ring(q, {}, heed::weight_function(same));
  });
  all.check_refused({"the group's size", std::to_string(2 * all.size() + 1)}, [&] {
    const tensor<float> three(1, 2 * all.size() + 1, n, 16);
    tensor<float> to(three);
    if (all.size() == 1) heed::detail::fail("the group's size 3");  // one rank takes any heads
    heed::exchange_attention_into(group, shards, shards, three.view(), three.view(), three.view(),
                                  to.view(), {}, {}, memory);
  });
  if (all.size() > 1) {
    const std::string both[] = {"on rank 0", "on rank " + std::to_string(all.size() - 1)};
    attention_options causally, scaled;
    causally.causal = causal::bottom_right;
    scaled.scale = 0.25 + odd;
    all.check_refused({"causal is 0", both[0], "2", both[1]},
                      [&] { ring(q, odd ? causally : attention_options()); });
    all.check_refused({"scale is 0.25", both[0], "1.25", both[1]}, [&] { ring(q, scaled); });
    all.check_refused({"dropout: seed is 4", "but 5", both[1]},
                      [&] { ring(q, {}, heed::dropout(0.1, 4 + odd)); });
    all.check_refused({"calls ring_attention_into", "calls scatter_tokens_into", both[1].substr(3)},
                      [&] {
                        if (odd)
                          heed::scatter_tokens_into(group, shards, q.view(), out.view());
                        else
                          ring(q, {});
                      });
    all.check_refused({"shards", both[0], both[1]}, [&] {
      const sequence_shards theirs =
          odd ? shards : sequence_shards::zigzag(all.size(), n * all.size());
      heed::ring_attention_into(group, theirs, shards, q.view(), q.view(), q.view(), out.view(), {},
                                {}, memory);
    });
  }
  all.check(same_bits(out, before), "a refused call has written something");

  // A function that throws: its rank throws that, and the others go on.
  const auto throws = [&](float s, size_type, size_type, size_type i, size_type) {
    if (odd && i % n == 3) throw std::logic_error("of the user");
    return s;
  };
  std::string thrown;
  try {
    ring(q, {}, heed::score_function(throws));
  } catch (const std::logic_error& error) {
    thrown = error.what();
  }
  all.check(thrown == (odd ? "of the user" : ""), "an exception in the ring: " + thrown);
  thrown.clear();
  heed::kv_cache<float> cache(1, 2, 16, 16);
  cache.append(q.view(), q.view());
  const auto throws_here = [&](float s, size_type, size_type, size_type, size_type j) {
    if (odd && j >= 0) throw std::logic_error("of the user");
    return s;
  };
  try {
    heed::sharded_cache_attention_into(group, q.view(), cache, out.view(), {}, {}, memory,
                                       heed::score_function(throws_here));
  } catch (const std::logic_error& error) {
    thrown = error.what();
  } catch (const std::runtime_error& error) {
    thrown = error.what();
  }
  all.check(thrown.find(odd ? "of the user" : "has thrown an exception") != std::string::npos,
            "an exception in decoding: " + thrown);
  ring(q, {});  // and the group can be used again
}

void shard_refusals(ranks& all) {
  const auto refused = [&](const char* part, const auto& make) {
    std::string text = "nothing was thrown";
    try {
      make();
    } catch (const std::invalid_argument& error) {
      text = error.what();
    }
    all.check(text.find(part) != std::string::npos, "shards: " + text);
  };
  refused("token 3 is held by no rank", [] { sequence_shards({{{0, 3}}, {{4, 2}}}); });
  refused("token 2 is held twice", [] { sequence_shards({{{0, 3}}, {{2, 2}}}); });
  refused("must not be negative", [] { sequence_shards({{{0, -3}}}); });
  refused("there must be a rank", [] { sequence_shards::zigzag(0, 5); });
  refused("at most 2147483647", [] { sequence_shards({{{0, size_type{1} << 31}}}); });
  all.check(sequence_shards({{{4, 2}, {0, 1}}, {}, {{1, 3}}}).tokens() == 6,
            "shards of any ranges");
  refused("MPI_COMM_NULL", [] { heed::process_group nobody(MPI_COMM_NULL); });
}

/// A type for messages of more than 2^31 numbers is made of numbers that an int holds.
void size_case(ranks& all) {
  const heed::detail::rows_type type(size_type{1} << 30, 1024);
  MPI_Count bytes = 0;
  MPI_Type_size_x(type, &bytes);
  all.check(bytes == MPI_Count{1} << 40, "a message of a tebibyte");
}

/// A call of MPI that fails is an mpi_error, and leaves nothing behind.
void failing_call(ranks& all) {
  const sequence_shards shards = sequence_shards::contiguous(all.group(), 8);
  const tensor<float> q(1, 1, 8, 8, 1);
  tensor<float> out(1, 1, 8, 8);
  heed::workspace memory;
  std::string thrown;
  fail_next_send = all.size() > 1;
  try {
    heed::ring_attention_into(all.group(), shards, shards, q.view(), q.view(), q.view(), out.view(),
                              {}, {}, memory);
  } catch (const heed::mpi_error& error) {
    thrown = error.what();
  }
  all.check(all.size() == 1 || thrown.find("MPI_Isend") != std::string::npos,
            "a call that fails: " + thrown);
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  const std::string mode = argc > 1 ? argv[1] : "";
  bool passed = false;
  if (mode == "killed") {  // the last rank dies; the others wait for it, and MPI ends them
    heed::process_group group(MPI_COMM_WORLD);
    const sequence_shards shards = sequence_shards::contiguous(group, 8);
    if (group.rank() == group.size() - 1) std::abort();
    sequence_shards::contiguous(group, 8);
    std::printf("rank %d went on\n", group.rank());
    return 0;
  }
  {
    heed::process_group group(MPI_COMM_WORLD);
    ranks all(group);
    shard_refusals(all);
    exchange_cases(all);
    decode_cases(all);
    token_cases(all);
    layer_cases(all);
    message_cases(all);
    long_case(all);
    size_case(all);
    refusals(all);
    all.check(alive.requests == 0 && alive.types == 0,
              "requests or types are left: " + std::to_string(alive.requests) + ", " +
                  std::to_string(alive.types));
    {
      heed::process_group own(MPI_COMM_WORLD);  // what fails may leave messages in it
      ranks some(own);
      failing_call(some);
      all.check(some.passed(), "a call of MPI that fails");
    }
    all.check(alive.requests == 0 && alive.types == 0, "requests or types are left by an error");
    all.check(alive.communicators == 1, "communicators are left");
    passed = all.passed();
  }
  passed = passed && alive.communicators == 0;
  MPI_Finalize();
  return passed ? 0 : 1;
}

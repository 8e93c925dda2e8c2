#pragma once

#include <heed/detail/backward_plan.hpp>
#include <heed/detail/caught.hpp>
#include <heed/detail/mpi_ring.hpp>
#include <heed/gradient_terms.hpp>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

// The gradient goes the way of the forward call: keys and values come in the same steps, and what a
// rank adds to their gradients goes straight back to where they came from, while the step after is
// computed. There it is summed in the order of the steps.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Rows as the sums need them: the caller's own where they are of that type, else a copy.
template <typename Acc>
class wide_rows {
 public:
  template <typename Scalar>
  void plan(const tensor_view<Scalar>& rows, pieces& room) {
    constexpr bool is_wide = std::is_same<std::remove_const_t<Scalar>, Acc>::value;
    if (!is_wide) at_ = room.room_for<Acc>(rows.batch * rows.heads * rows.rows * rows.cols);
  }
  /// To be read.
  template <typename Scalar>
  tensor_view<const Acc> read(const tensor_view<const Scalar>& rows, void* memory) const {
    if constexpr (std::is_same<Scalar, Acc>::value) {
      return rows;
    } else {
      const tensor_view<Acc> copy = write(rows, memory);
      copy_numbers(rows, copy);
      return copy;
    }
  }
  /// To be written, and copied when all is done.
  template <typename Scalar>
  tensor_view<Acc> write(const tensor_view<Scalar>& rows, void* memory) const {
    if constexpr (std::is_same<Scalar, Acc>::value)
      return rows;
    else
      return bhnd(scratch_at<Acc>(memory, at_), rows.batch, rows.heads, rows.rows, rows.cols);
  }

 private:
  size_type at_ = 0;
};

template <typename Acc>
void clear_numbers(const tensor_view<Acc>& x) {
  for (size_type b = 0; b < x.batch; ++b)
    for (size_type h = 0; h < x.heads; ++h)
      for (size_type i = 0; i < x.rows; ++i)
        for (size_type c = 0; c < x.cols; ++c) x(b, h, i, c) = Acc(0);
}
/// Adds every number of a part to sums, heads shared out among the workers.
template <typename Acc>
void add_numbers(const tensor_view<Acc>& part, const tensor_view<Acc>& sums, const execution& how) {
  const size_type heads = sums.batch * sums.heads;
  for_each_task(heads, workers_of(how, heads), how.executor, [&](size_type task, int) {
    const size_type b = task / sums.heads, h = task % sums.heads;
    for (size_type i = 0; i < sums.rows; ++i)
      for (size_type c = 0; c < sums.cols; ++c) sums(b, h, i, c) += part(b, h, i, c);
  });
}

template <typename Scalar, typename Out, typename... Terms>
void ring_attention_backward(
    process_group& group, const sequence_shards& queries, const sequence_shards& keys,
    const tensor_view<const Scalar>& query, const tensor_view<const Scalar>& key,
    const tensor_view<const Scalar>& value, const tensor_view<const Out>& out,
    const tensor_view<const accumulator_t<Scalar>>& lse, const tensor_view<const Scalar>& grad_out,
    const tensor_view<Scalar>& grad_query, const tensor_view<Scalar>& grad_key,
    const tensor_view<Scalar>& grad_value, const attention_options& options, workspace& memory,
    const Terms&... given) {
  using Acc = accumulator_t<Scalar>;
  constexpr group_call call = group_call::ring_attention_backward;
  const char* const name = name_of(call);
  const size_type batch = query.batch;

  backward_terms<Acc> all_terms;
  std::optional<visibility> seen;
  std::optional<travelling<Scalar>> all_keys, all_values;
  std::vector<place> places;
  part_places part_of;
  wide_rows<Acc> wide_query, wide_out, wide_grad_out, wide_grad_query, wide_grad_key,
      wide_grad_value;
  pieces room;
  size_type part_query_at = 0, part_key_at = 0, part_value_at = 0, incoming_key_at = 0,
            incoming_value_at = 0, key_block_at = 0, value_block_at = 0;
  size_type outgoing_key_at[2] = {0, 0}, outgoing_value_at[2] = {0, 0};
  void* base = nullptr;
  whole_call whole;
  agreement same(call);
  same.settle(group, [&] {
    places = whole_places(batch, queries.tokens(), keys.tokens());
    check_view(name, "query", query);
    check_view(name, "key", key);
    check_view(name, "value", value);
    check_shards(name, "queries", group, queries, "query: rows", query);
    check_shards(name, "keys", group, keys, "key: rows", key);
    add_terms(all_terms, given...);
    check_terms_of_group<Acc>(name, all_terms);
    if (all_terms.grad_bias || all_terms.grad_alibi || all_terms.grad_sinks ||
        all_terms.grad_logit_scales)
      fail_with("heed::", name,
                ": the gradients of terms are not summed over ranks: give none of them");
    backward_problem<Scalar, Out> p{
        problem<Scalar>(query, tensor_view<const Scalar>(key), tensor_view<const Scalar>(value), {},
                        {}, options),
        out,
        lse,
        grad_out,
        grad_query,
        grad_key,
        grad_value,
        all_terms};
    p.forward.terms = all_terms;
    p.forward.whole = whole = {places.data(), query.heads, query.rows, keys.tokens(), 0, 0};
    check_backward(name, p);
    shorten<Acc>(places, all_terms);
    seen.emplace(queries, keys, options, places);
    agree_on_call(same, p.forward, queries, keys);
    same.add("whether there is a grad_lse", std::int64_t{all_terms.grad_lse.has_value()});

    const ring_steps steps(group, *seen);
    const bool takes = steps.takes_any(), gives = steps.gives_any();
    const size_type most = (std::max)(steps.most_rows(), key.rows),
                    key_row = batch * key.heads * key.cols,
                    value_row = batch * key.heads * value.cols;
    wide_query.plan(query, room);
    wide_out.plan(out, room);
    wide_grad_out.plan(grad_out, room);
    wide_grad_query.plan(grad_query, room);
    wide_grad_key.plan(grad_key, room);
    wide_grad_value.plan(grad_value, room);
    part_query_at = room.room_for<Acc>(batch * query.heads * query.rows * query.cols);
    part_key_at = room.room_for<Acc>(key_row * most);
    part_value_at = room.room_for<Acc>(value_row * most);
    if (!std::is_same<Scalar, Acc>::value) {
      key_block_at = room.room_for<Acc>(key_row * most);
      value_block_at = room.room_for<Acc>(value_row * most);
    }
    if (gives) {
      incoming_key_at = room.room_for<Acc>(key_row * key.rows);
      incoming_value_at = room.room_for<Acc>(value_row * key.rows);
    }
    for (int turn = 0; takes && turn < 2; ++turn) {
      outgoing_key_at[turn] = room.room_for<Acc>(key_row * most);
      outgoing_value_at[turn] = room.room_for<Acc>(value_row * most);
    }
    all_keys.emplace(key, steps.most_rows(), gives, takes, room);
    all_values.emplace(value, steps.most_rows(), gives, takes, room);
    base = group.messages().reserve(room.bytes());
    part_of.places.reserve(places.size());
    part_of.query_lengths.reserve(places.size());
    part_of.key_lengths.reserve(places.size());
  });

  const ring_steps steps(group, *seen);
  all_keys->use(base);
  all_values->use(base);
  const auto rows_at = [&](size_type at, size_type heads, size_type rows, size_type cols) {
    return bhnd(scratch_at<Acc>(base, at), batch, heads, rows, cols);
  };
  const auto keys_at = [&](size_type at, size_type n) {
    return rows_at(at, key.heads, n, key.cols);
  };
  const auto values_at = [&](size_type at, size_type n) {
    return rows_at(at, key.heads, n, value.cols);
  };
  const tensor_view<const Acc> q = wide_query.read(query, base), o = wide_out.read(out, base),
                               g = wide_grad_out.read(grad_out, base);
  const tensor_view<Acc> sums_query = wide_grad_query.write(grad_query, base),
                         sums_key = wide_grad_key.write(grad_key, base),
                         sums_value = wide_grad_value.write(grad_value, base);
  clear_numbers(sums_query);
  clear_numbers(sums_key);
  clear_numbers(sums_value);

  messages under_way(group);
  looking_executor looks(options.execution, under_way);
  execution how = options.execution;
  how.executor = &looks;

  // Adds what this rank's queries make of a block of `owner` to the gradients.
  const auto attend = [&](const tensor_view<const Scalar>& block_keys,
                          const tensor_view<const Scalar>& block_values, int owner,
                          const tensor_view<Acc>& to_key, const tensor_view<Acc>& to_value) {
    tensor_view<const Acc> k, v;
    if constexpr (std::is_same<Scalar, Acc>::value) {
      k = block_keys, v = block_values;
    } else {
      const tensor_view<Acc> wide_k = keys_at(key_block_at, block_keys.rows),
                             wide_v = values_at(value_block_at, block_keys.rows);
      copy_numbers(block_keys, wide_k);
      copy_numbers(block_values, wide_v);
      k = wide_k, v = wide_v;
    }
    seen->each_part(group.rank(), owner, [&](const ring_part& part) {
      const auto of_query = [&](auto rows) { return rows_of(rows, part.query_row, part.n_q); };
      const auto of_key = [&](auto rows) { return rows_of(rows, part.key_row, part.n_kv); };
      const tensor_view<Acc> part_query = rows_at(part_query_at, query.heads, part.n_q, query.cols),
                             part_key = keys_at(part_key_at, part.n_kv),
                             part_value = values_at(part_value_at, part.n_kv);
      backward_problem<Acc, Acc> p{problem<Acc>(of_query(q), of_key(k), of_key(v), {}, {}, options),
                                   of_query(o),
                                   of_query(lse),
                                   of_query(g),
                                   part_query,
                                   part_key,
                                   part_value,
                                   all_terms};
      if (all_terms.grad_lse) p.terms.grad_lse->view = of_query(all_terms.grad_lse->view);
      p.forward.terms = all_terms;
      p.forward.options.execution = how;
      p.forward.whole = whole;
      part_of.place_part(p.forward, part, seen->places(), keys.tokens());
      backward(p, memory);
      add_numbers(part_query, of_query(sums_query), how);
      add_numbers(part_key, of_key(to_key), how);
      add_numbers(part_value, of_key(to_value), how);
    });
  };

  caught_exception caught;  // of a function of the user: the other ranks get their messages first
  for (int step = 0; step <= steps.count(); ++step) {
    const int next = step + 1, before = step - 1;
    if (steps.takes(next)) {
      const int owner = steps.owner(next);
      under_way.receive(all_keys->block(next, keys.rows(owner)), owner, message_tag::key);
      under_way.receive(all_values->block(next, keys.rows(owner)), owner, message_tag::value);
    }
    if (steps.gives(next)) {
      under_way.send(all_keys->own(), steps.user(next), message_tag::key);
      under_way.send(all_values->own(), steps.user(next), message_tag::value);
    }
    const bool adds = before > 0 && steps.gives(before);
    if (adds) {
      under_way.receive(keys_at(incoming_key_at, key.rows), steps.user(before),
                        message_tag::grad_key);
      under_way.receive(values_at(incoming_value_at, key.rows), steps.user(before),
                        message_tag::grad_value);
    }
    if (before > 0 && steps.takes(before)) {
      const int owner = steps.owner(before);
      under_way.send(keys_at(outgoing_key_at[before % 2], keys.rows(owner)), owner,
                     message_tag::grad_key);
      under_way.send(values_at(outgoing_value_at[before % 2], keys.rows(owner)), owner,
                     message_tag::grad_value);
    }
    caught.guard([&] {
      const computing_time timed(group);
      if (step == 0) {
        attend(key, value, group.rank(), sums_key, sums_value);
      } else if (steps.takes(step)) {
        const int owner = steps.owner(step);
        const size_type rows = keys.rows(owner);
        const tensor_view<Acc> to_key = keys_at(outgoing_key_at[step % 2], rows),
                               to_value = values_at(outgoing_value_at[step % 2], rows);
        clear_numbers(to_key);
        clear_numbers(to_value);
        attend(all_keys->block(step, rows), all_values->block(step, rows), owner, to_key, to_value);
      }
    });
    under_way.wait();
    if (adds) {
      const computing_time timed(group);
      add_numbers(keys_at(incoming_key_at, key.rows), sums_key, how);
      add_numbers(values_at(incoming_value_at, key.rows), sums_value, how);
    }
  }
  if (all_terms.score_function.run || all_terms.mask_function.run)
    settle_exceptions(group, call, caught);
  caught.rethrow();
  if constexpr (!std::is_same<Scalar, Acc>::value) {
    copy_numbers(tensor_view<const Acc>(sums_query), grad_query);
    copy_numbers(tensor_view<const Acc>(sums_key), grad_key);
    copy_numbers(tensor_view<const Acc>(sums_value), grad_value);
  }
}

}  // namespace detail
HEED_NAMESPACE_END

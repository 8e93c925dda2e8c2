#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/stored.hpp>
#include <heed/tensor.hpp>

// What a call asks of keys and values in pages, whose lengths and numbers of pages are the caller's
// and may be others at each call.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Each sequence has a length, and as many pages as it needs.
template <typename Stored>
void check_paged_lengths(const char* function, const stored_tensor<Stored>& key) {
  if (!key.paged) return;
  check_list(function, "sequences", key.sequences);
  for (size_type b = 0; b < key.batch; ++b) {
    const size_type s = key.sequence(b);
    if (s < 0 || s >= key.table.sequences())
      fail_with("heed::", function, ": sequences: entry ", b, " is ", s, ", but the table has ",
                key.table.sequences(), " sequences");
    const size_type length = key.length(b);
    if (length < 0)
      fail_with("heed::", function, ": sequence ", s, " has the length ", length,
                ", which must not be negative");
    if (key.pages_for(length) > key.table.most(s))
      fail_with("heed::", function, ": sequence ", s, " has the length ", length, ", which takes ",
                key.pages_for(length), " pages of ", key.elements.rows, " rows, but the table has ",
                key.table.most(s), " for it");
  }
}

/// Every page that will be read exists.
template <typename Problem>
void check_pages(const char* function, const Problem& p) {
  if (!p.key.paged) return;
  for (size_type b = 0; b < p.batch(); ++b) {
    if (p.n_q(b) == 0 || p.n_kv(b) == 0) continue;
    const index_range reach = p.reach(b);
    if (reach.empty()) continue;
    // Kernels may take keys two by two, counted from the blocks of a block mask where there is one.
    const size_type first = p.terms.sparse() ? 0 : reach.begin - reach.begin % 2,
                    skipped = p.first_key(b), s = p.key.sequence(b);
    const index_list pages = p.key.table.pages(s);
    for (size_type place = (skipped + first) / p.key.elements.rows;
         place < p.key.pages_for(skipped + reach.end); ++place)
      if (const size_type page = pages[place]; page < 0 || page >= p.key.elements.batch)
        fail_with("heed::", function, ": sequence ", s, ": entry ", place, " of its table is page ",
                  page, ", but there are ", p.key.elements.batch, " pages");
  }
}

}  // namespace detail
HEED_NAMESPACE_END

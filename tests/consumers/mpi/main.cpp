// What a user of many ranks writes first.
#include <heed/mpi.hpp>

#include <cmath>
#include <vector>

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  float worst = 0;
  {
    heed::process_group group(MPI_COMM_WORLD);
    const auto shards = heed::sequence_shards::zigzag(group.size(), 100);
    const heed::size_type rows = shards.rows(group.rank());
    std::vector<float> x(static_cast<std::size_t>(rows) * 64, 2.5f), out(x.size());
    const auto tokens = heed::bhnd(x.data(), 1, 2, rows, 32);
    heed::workspace memory;
    heed::attention_options options;
    options.causal = heed::causal::bottom_right;
    heed::ring_attention_into(group, shards, shards, tokens, tokens, tokens,
                              heed::bhnd(out.data(), 1, 2, rows, 32), {}, options, memory);
    for (const float number : out) worst = std::fmax(worst, std::fabs(number - 2.5f));
  }
  MPI_Finalize();
  return worst < 1e-5f ? 0 : 1;
}

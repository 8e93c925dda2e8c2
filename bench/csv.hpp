#pragma once

#include <benchmark/benchmark.h>

#include <limits>
#include <vector>

namespace bench {

BENCHMARK_DISABLE_DEPRECATED_WARNING  // of Google Benchmark's CSV, which has no successor in it

    /// CSV has one header, and Google Benchmark aborts at a counter that its first row did not
    /// have. Ours differ from row to row: so all rows wait for the end, and each gets the counters
    /// of all, NaN where it has none of its own.
    class csv_reporter final : public benchmark::CSVReporter {
 public:
  void ReportRuns(const std::vector<Run>& reports) override {
    runs_.insert(runs_.end(), reports.begin(), reports.end());
  }

  void Finalize() override {
    benchmark::UserCounters every;
    for (const Run& run : runs_)
      for (const auto& counter : run.counters)
        every[counter.first] = std::numeric_limits<double>::quiet_NaN();
    for (Run& run : runs_) run.counters.insert(every.begin(), every.end());
    if (!runs_.empty()) benchmark::CSVReporter::ReportRuns(runs_);
  }

 private:
  std::vector<Run> runs_;
};

BENCHMARK_RESTORE_DEPRECATED_WARNING

}  // namespace bench

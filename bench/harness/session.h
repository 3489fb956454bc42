// The whole run on one rank: preamble, every case of every cycle, footer, reports. All ranks run the same
// session in step; rank 0 is the one that prints and writes files.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/exchange.h"
#include "bench/harness/json_report.h"
#include "bench/harness/measure.h"
#include "bench/harness/options.h"
#include "bench/harness/row.h"
#include "bench/harness/table.h"

namespace peal::bench {

class Session {
 public:
  Session(const Options& options, const Collective& collective, const tools::RankContext& ranks);
  // The exit code of this rank. What it throws is reported by its caller; the JSON file, if one was asked
  // for, then holds the rows so far and the sentence.
  int run();

 private:
  bool isReporter() const { return ranks_.rank == 0; }
  void print(const std::string& text) const;  // on the reporter only

  std::vector<RankInfo> introduce();
  void requireMemory(const std::vector<RankInfo>& infos) const;
  std::string rankSourceText() const;
  std::vector<int> roots() const;

  void measureAll();
  void runCycles(const Measurer::Case& what);
  void runRow(Measurer::Case what);
  Measured combineReports(const Row& row, const std::vector<RankReport>& reports) const;
  void gatherMemory();
  Summary summarize() const;
  void writeReports(const std::optional<Summary>& summary, const std::vector<std::string>& errors) const;

  const Options& options_;
  const Collective& collective_;
  const tools::RankContext& ranks_;
  const std::string startTime_;
  RecordExchange exchange_;
  Preamble preamble_;
  std::unique_ptr<Measurer> measurer_;
  std::vector<Row> rows_;  // of all cycles, or of the last if they never end
  MemoryInfo memory_;
  std::vector<MemoryInfo> allMemory_;
  uint64_t outOfBounds_ = 0;  // of all ranks
  uint64_t ownFaults_ = 0;    // of this rank: judged without asking the others
  double busBwSum_ = 0;
  uint64_t busBwCount_ = 0;
};

}  // namespace peal::bench

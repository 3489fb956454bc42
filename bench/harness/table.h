// The text that the benches print: column for column what nccl-tests prints, so that its scripts read it.
// What peal adds stands in lines that start with #.
//
// Pure formatting: nothing here measures or prints.
#pragma once
#include <string>
#include <vector>

#include "bench/harness/options.h"
#include "bench/harness/row.h"

namespace peal::bench {

// `value` in at most `width` characters: two decimals if they fit, else one, none, or an exponent.
std::string fitNumber(double value, int width);

struct Preamble {
  const Options& options;
  const char* program;
  int libraryVersion;
  std::string rankSource;  // "2 processes of this machine (--ranks)"
  std::string loadAverage;
  std::vector<RankInfo> ranks;
};
std::string preambleText(const Preamble& preamble);

std::string headerText(const Options& options);
std::string rowText(const Row& row);
// Lines "# bound": theoretical bytes per rank, bytes sent and their ratio, row by row.
std::string boundText(const std::vector<Row>& rows);
std::string footerText(const Options& options, const char* program, const Summary& summary);
std::string memoryText(const std::vector<MemoryInfo>& ranks);

}  // namespace peal::bench

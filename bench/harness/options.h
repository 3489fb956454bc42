// The command line of every bench: nccl-tests' flags, short and long, and peal's own.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/collective.h"
#include "bench/harness/types.h"
#include "tools/common/ranks.h"

namespace peal::bench {

enum class Average { Rank0 = 0, Mean = 1, Min = 2, Max = 3 };                             // -a
enum class Blocking { No = 0, EachCallAndBarrier = 1, EachCall = 2, EachIteration = 3 };  // -z
enum class Places { Both, InPlaceOnly, OutOfPlaceOnly };                                  // -O

struct Options {
  std::vector<std::string> arguments;  // as given, for reports
  int threads = 1, gpus = 1;
  int device = PEAL_DEVICE_HOST;  // or a GPU's number, or kDeviceAuto
  int graphLaunches = 0;          // -G: the timed iterations are a CUDA graph, launched so often; 0: no graph
  tools::RankOptions ranks;

  uint64_t minBytes = 0, maxBytes = 0, stepBytes = 0;
  uint64_t stepFactor = 0;  // 0 or 1: steps of stepBytes
  int iterations = 20, warmups = 1, aggregated = 1;
  int cycles = 1;  // 0: until interrupted
  int checks = 1;
  Average average = Average::Mean;
  Blocking blocking = Blocking::No;
  Places places = Places::Both;
  std::vector<Combine> combines;
  std::vector<pealDataType_t> types;
  int root = 0;  // -1: every rank in turn
  int unalign = 0;
  int timeoutSeconds = 0;  // 0: the library's default

  bool parallelInit = false, hostStream = false, registered = false;
  bool reportCpuTime = false, reportTimestamps = false, reportMemory = false;
  bool deterministic = false;
  std::string jsonPath, plotPath;
  std::optional<double> minBusBandwidth;  // GB/s, from PEAL_TESTS_MIN_BW or NCCL_TESTS_MIN_BW

  // Sentences about flags that were given and mean nothing here.
  std::vector<std::string> remarks;
};

// Fills options. Returns the exit code if the program is to end now; see tools::parseArguments.
std::optional<int> parseOptions(const Collective& collective, int argc, char** argv, Options& options);

// The sizes of one cycle, in the order of the table.
std::vector<uint64_t> sizesToMeasure(const Options& options);

}  // namespace peal::bench

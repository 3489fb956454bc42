// What is known of a run and of one row of the table. Plain values: measured by Session, shown by table,
// json_report and chart.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/types.h"

namespace peal::bench {

// One half of a row, over all ranks.
struct Measured {
  double timeUs = 0;
  double algBw = 0, busBw = 0;    // GB/s, GB = 10^9
  std::optional<uint64_t> wrong;  // elements; empty with -c 0
  uint64_t strayBytes = 0;
};

// Bytes on the wire of one call of a row.
struct Wire {
  double boundBytes = 0;                        // that no algorithm undercuts, per rank on average
  double meanSentBytes = 0, mostSentBytes = 0;  // that ranks sent: average, and the busiest
  double meanMessages = 0;
};

struct Row {
  uint64_t sizeBytes = 0, count = 0;
  pealDataType_t type = pealFloat32;
  Combine combine = Combine::Copy;
  int root = -1;
  std::optional<Measured> outOfPlace, inPlace;
  Wire wire;
  std::string timestamp;  // with -S
};

// Of one rank, for the preamble.
struct RankInfo {
  int pid = 0;
  int allowedCpus = 0;
  uint64_t availableBytes = 0;
  char host[64] = {};
  char cpu[96] = {};
  int device = PEAL_DEVICE_HOST;
  char deviceName[64] = {};
  uint64_t deviceFreeBytes = 0;
};

// Of one rank, for -M.
struct MemoryInfo {
  uint64_t initBytes = 0, bufferBytes = 0, collectiveBytes = 0, peakBytes = 0;
};

struct Summary {
  uint64_t outOfBounds = 0;  // wrong elements and stray bytes of all ranks
  double meanBusBw = 0;
  bool bandwidthFailed = false;
};

}  // namespace peal::bench

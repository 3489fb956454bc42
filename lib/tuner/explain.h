// What the tuner would choose for a call, and why: the text of pealExplainChoice and of peal-info --explain.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "lib/base/gpu_path.h"
#include "lib/base/result.h"

namespace peal {

struct ExplainQuestion {
  int kind = 0;            // pealStatAllReduce .. pealStatReduce
  std::string collective;  // its name
  size_t bytes = 0;        // of the whole array
  int nodes = 1;
  int ranksPerNode = 1;
  // Between nodes: its name, if there is one, and of its endpoint.
  std::string network;
  size_t slotBytes = 65536;
  int burst = 1;
  bool crowded = false;  // more ranks than processors, on host memory

  // On GPUs: how those of a node reach each other, and the shape of messages as DeviceQuestion has it.
  std::optional<GpuPath> path{};
  size_t llBytes = 0, ll128Bytes = 0;
  int channels = 1;
};

// JSON, by this process's configuration: PEAL_ALGO, PEAL_PROTOCOL, PEAL_DETERMINISTIC, PEAL_SLOTS, and the
// link costs of PEAL_TUNER_FILE; without that file those that the topology of PEAL_TOPOLOGY_FILE describes,
// or assumed ones, and the text says so.
Result<std::string> explainChoice(const ExplainQuestion& question);

}  // namespace peal

// The machines that a plan is for, as a topology describes them: how many ranks share a node, and how many of
// the bytes that a rank sends stay inside it.
//
// The bytes are those of hierarchical algorithms (docs/ALGORITHMS.md), which together send as many as a ring
// does.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "peal/zero.h"

namespace peal::tools {

struct Cluster {
  int64_t nodes = 0;
  int64_t ranksPerNode = 0;
  double insideBytesPerSecond = 0;  // of a rank, 0: not described
  double betweenBytesPerSecond =
      0;  // of a rank: its share of the node's rails, unless described; 0: not known
};

// What a rank sends in a step, and how long that takes by itself; 0 seconds: not known.
struct LinkUse {
  double insideBytes = 0, betweenBytes = 0;
  double insideSeconds = 0, betweenSeconds = 0;
};

// From pealTopology's JSON. Throws UsageError if its nodes differ in ranks, or say nothing of ranks.
Cluster clusterOf(const nlohmann::json& topology);

// The first nodes of the cluster, as many as hold `ranks`, whose shard groups have `group` (0: none). Throws
// UsageError if they do not fill nodes, or are too many.
Cluster partOf(const Cluster& cluster, int64_t ranks, int64_t group);

// stage: a column of the plan.
LinkUse linkUse(const Cluster& cluster, const pealZeroPlanInput_t& input, const pealZeroPlanStage_t& row,
                int stage);

}  // namespace peal::tools

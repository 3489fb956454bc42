#include "tools/plan/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/common/error.h"

namespace peal::tools {
namespace {

using nlohmann::json;

constexpr double kBytesPerMegabit = 125000;

int ranksOf(const json& node) {
  const int ranks = node.value("ranks", static_cast<int>(node.at("gpus").size()));
  if (ranks == 0) {
    throw UsageError(
        fmt::format("the topology's node {} has no GPUs and does not say \"ranks\": how many ranks a "
                    "job places on it",
                    node.at("name").get<std::string>()));
  }
  return ranks;
}

double railBytesPerSecond(const json& node) {
  double sum = 0;
  for (const json& nic : node.at("nics")) {
    if (!nic.contains("idle") && nic.contains("speedMbps")) {
      sum += nic.at("speedMbps").get<double>() * kBytesPerMegabit;
    }
  }
  return sum;
}

double described(const json& topology, const char* link) {
  return topology.contains(link) ? topology.at(link).at("gigabytesPerSecond").get<double>() * 1e9 : 0;
}

// Adds what a rank sends of `bytes` in a collective of `ranks` ranks, `perNode` of them in each node: reduced
// and gathered inside, with the rank's own shard exchanged between nodes. Of the N-1 shards that it sends,
// R-1 leave the node.
void addCollective(double bytes, int64_t ranks, int64_t perNode, LinkUse& use) {
  if (ranks > 1) {
    const int64_t otherNodes = ranks / perNode - 1;
    const double between = bytes * static_cast<double>(otherNodes) / static_cast<double>(ranks - 1);
    use.betweenBytes += between;
    use.insideBytes += bytes - between;
  }
}

}  // namespace

Cluster clusterOf(const json& topology) {
  Cluster cluster;
  for (const json& node : topology.at("nodes")) {
    const int ranks = ranksOf(node);
    const double rate = railBytesPerSecond(node) / ranks;
    if (cluster.nodes > 0 && ranks != cluster.ranksPerNode) {
      throw UsageError(
          fmt::format("the topology's nodes hold {} and {} ranks; a plan by link class needs as many on "
                      "each: say \"ranks\" for them",
                      cluster.ranksPerNode, ranks));
    }
    cluster.betweenBytesPerSecond =
        cluster.nodes == 0 ? rate : std::min(rate, cluster.betweenBytesPerSecond);  // the slowest decides
    cluster.nodes += node.value("count", 1);
    cluster.ranksPerNode = ranks;
  }
  cluster.insideBytesPerSecond = described(topology, "insideNode");
  if (const double rate = described(topology, "betweenNodes"); rate > 0) {
    cluster.betweenBytesPerSecond = rate;
  }
  return cluster;
}

Cluster partOf(const Cluster& cluster, int64_t ranks, int64_t group) {
  const int64_t most = cluster.nodes * cluster.ranksPerNode;
  Cluster part = cluster;
  if (ranks <= cluster.ranksPerNode) {
    part.nodes = 1;
    part.ranksPerNode = ranks;
  } else if (ranks > most || ranks % cluster.ranksPerNode != 0) {
    throw UsageError(fmt::format("--ranks {} do not fill nodes of the topology: it has {} of {} ranks", ranks,
                                 cluster.nodes, cluster.ranksPerNode));
  } else {
    part.nodes = ranks / cluster.ranksPerNode;
  }
  if (group > 0 && part.ranksPerNode % group != 0 && group % part.ranksPerNode != 0) {
    throw UsageError(
        fmt::format("--group {} lies unevenly on nodes of {} ranks: give a divisor or a multiple", group,
                    part.ranksPerNode));
  }
  return part;
}

LinkUse linkUse(const Cluster& cluster, const pealZeroPlanInput_t& input, const pealZeroPlanStage_t& row,
                int stage) {
  LinkUse use;
  if (stage >= pealZeroPlanHsdp) {
    const bool groupInNode = input.group <= cluster.ranksPerNode;
    const int64_t replicas = input.ranks / input.group;
    addCollective(row.groupBytesSent, input.group, groupInNode ? input.group : cluster.ranksPerNode, use);
    addCollective(row.bytesSent, replicas, groupInNode ? cluster.ranksPerNode / input.group : 1, use);
  } else {
    addCollective(row.bytesSent, input.ranks, cluster.ranksPerNode, use);
  }
  if (cluster.insideBytesPerSecond > 0) {
    use.insideSeconds = use.insideBytes / cluster.insideBytesPerSecond;
  }
  if (cluster.betweenBytesPerSecond > 0) {
    use.betweenSeconds = use.betweenBytes / cluster.betweenBytesPerSecond;
  }
  return use;
}

}  // namespace peal::tools

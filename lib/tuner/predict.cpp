#include "lib/tuner/predict.h"

#include <algorithm>
#include <vector>

#include "peal/peal.h"

namespace peal {
namespace {

// How many of the steps cross from node to node.
double stepsBetween(AlgorithmId algorithm, const Grouping& nodes, int steps) {
  if (nodes.nodes == 1) {
    return 0;
  }
  const int power = powerBelow(nodes.nodes);
  int crossings = 0;  // of the ring
  for (int rank = 0; rank < nodes.ranks; ++rank) {
    crossings += nodes.sameNode(rank, (rank + 1) % nodes.ranks) ? 0 : 1;
  }
  switch (algorithm) {
    case AlgorithmId::RingAllReduce:
    case AlgorithmId::RingReduceScatter:
    case AlgorithmId::RingAllGather:
    case AlgorithmId::RingBroadcast:
    case AlgorithmId::RingReduce:
      return static_cast<double>(steps) * crossings / nodes.ranks;
    case AlgorithmId::HierarchicalRingAllReduce:
      return 2.0 * ringTurns(nodes) * (nodes.nodes - 1);
    case AlgorithmId::HierarchicalRingReduceScatter:
    case AlgorithmId::HierarchicalRingAllGather:
      return ringTurns(nodes) * (nodes.nodes - 1);
    case AlgorithmId::HierarchicalAllReduce:
      return 2;
    case AlgorithmId::HierarchicalReduceScatter:
    case AlgorithmId::HierarchicalAllGather:
      return 1;
    case AlgorithmId::HierarchicalBroadcast:
    case AlgorithmId::HierarchicalReduce:
      return nodes.nodes - 1;
    case AlgorithmId::DoublingAllReduce:
      return logBelow(nodes.nodes) + (nodes.nodes > power ? 1 : 0);
    case AlgorithmId::TreeBroadcast:
    case AlgorithmId::TreeReduce:
      return logBelow(nodes.nodes);
    default:
      return steps;
  }
}

// Whether a rank waits in every round for what it sent in this round to come back through others. Elsewhere
// rounds follow each other through the links' slots, and latencies count once.
bool stallsEveryRound(AlgorithmId algorithm, int ahead) {
  switch (algorithm) {
    case AlgorithmId::RingAllReduce:
    case AlgorithmId::RingReduceScatter:
    case AlgorithmId::RingAllGather:
    case AlgorithmId::OneShotAllReduce:
    case AlgorithmId::TwoShotAllReduce:
    case AlgorithmId::DoublingAllReduce:
    case AlgorithmId::HierarchicalRingAllReduce:
    case AlgorithmId::HierarchicalRingReduceScatter:
    case AlgorithmId::HierarchicalRingAllGather:
      return true;
    case AlgorithmId::HierarchicalAllReduce:
    case AlgorithmId::HierarchicalReduceScatter:
    case AlgorithmId::HierarchicalAllGather:
    case AlgorithmId::StagedTwoShot:
      return ahead == 0;
    default:
      return false;
  }
}

Blocks blocksFor(AlgorithmId algorithm, const Grouping& nodes, size_t bytes) {
  return {bytes, traitsOf(algorithm, nodes).cut == Cut::Whole ? 1 : nodes.ranks, nullptr};
}

// What a rank adds up beyond its share.
double sumBytes(AlgorithmId algorithm, const Grouping& nodes, size_t bytes) {
  const double peers = nodes.ranks - 1;
  const double terms = algorithm == AlgorithmId::OneShotAllReduce    ? peers - peers / nodes.ranks
                       : algorithm == AlgorithmId::DoublingAllReduce ? logBelow(nodes.nodes)
                                                                     : 0;
  return terms * static_cast<double>(bytes);
}

bool isChain(AlgorithmId algorithm) {
  return algorithm == AlgorithmId::RingBroadcast || algorithm == AlgorithmId::RingReduce ||
         algorithm == AlgorithmId::HierarchicalBroadcast || algorithm == AlgorithmId::HierarchicalReduce;
}

}  // namespace

AlgorithmId algorithmOf(int kind, Algorithm family, bool severalNodes) {
  using enum AlgorithmId;
  const bool ring = family == Algorithm::Ring, tree = family == Algorithm::Tree;
  const bool levelsRing = family == Algorithm::HierarchicalRing && severalNodes;
  const bool levels = levelsRing || (family == Algorithm::Hierarchical && severalNodes);
  switch (kind) {
    case pealStatReduceScatter:
      return ring         ? RingReduceScatter
             : levelsRing ? HierarchicalRingReduceScatter
             : levels     ? HierarchicalReduceScatter
                          : DirectReduceScatter;
    case pealStatAllGather:
      return ring         ? RingAllGather
             : levelsRing ? HierarchicalRingAllGather
             : levels     ? HierarchicalAllGather
                          : DirectAllGather;
    case pealStatBroadcast:
      return ring ? RingBroadcast : levels ? HierarchicalBroadcast : tree ? TreeBroadcast : DirectBroadcast;
    case pealStatReduce:
      return ring ? RingReduce : levels ? HierarchicalReduce : tree ? TreeReduce : DirectReduce;
    case pealStatAllReduce:
      if (ring || levels) {
        return ring ? RingAllReduce : levelsRing ? HierarchicalRingAllReduce : HierarchicalAllReduce;
      }
      return tree ? DoublingAllReduce : family == Algorithm::OneShot ? OneShotAllReduce : TwoShotAllReduce;
    default:  // a barrier
      return tree || levels ? DoublingAllReduce : OneShotAllReduce;
  }
}

Prediction::Load Prediction::loadOf(AlgorithmId algorithm, const Blocks& blocks, const Grouping& nodes) {
  Load load;
  // What a reduction brings to its root is what a broadcast takes from it.
  if (algorithm == AlgorithmId::DirectReduce) {
    return loadOf(AlgorithmId::DirectBroadcast, blocks, nodes);
  }
  if (algorithm == AlgorithmId::TreeReduce) {
    return loadOf(AlgorithmId::TreeBroadcast, blocks, nodes);
  }
  std::vector<double> leaving(static_cast<size_t>(nodes.nodes), 0);
  for (int rank = 0; rank < nodes.ranks; ++rank) {
    const LinkTraffic sent = trafficOf(algorithm, blocks, nodes, rank, 0);
    load.insideBytes = std::max(load.insideBytes, static_cast<double>(sent.inside.elements));
    load.insideMessages = std::max(load.insideMessages, static_cast<double>(sent.inside.messages));
    load.betweenMessages = std::max(load.betweenMessages, static_cast<double>(sent.between.messages));
    double& node = leaving[static_cast<size_t>(nodes.node(rank))];
    node += static_cast<double>(sent.between.elements);
    load.betweenBytes = std::max(load.betweenBytes, node);
  }
  return load;
}

Prediction::Prediction(AlgorithmId algorithm, const Grouping& nodes, size_t bytes)
    : algorithm_(algorithm),
      nodes_(nodes),
      bytes_(bytes),
      load_(loadOf(algorithm, blocksFor(algorithm, nodes, bytes), nodes)) {}

size_t Prediction::blockBytes() const { return blocksFor(algorithm_, nodes_, bytes_).longest(); }

double Prediction::us(const Choice& choice, const LinkTable& links, double sumUsPerByte) const {
  const AlgorithmTraits traits = traitsOf(algorithm_, nodes_, choice.ahead);
  const size_t chunk = std::max<size_t>(1, choice.chunkBytes);
  const auto rounds = static_cast<double>(std::max<size_t>(1, (blockBytes() + chunk - 1) / chunk));
  const double acrossSteps = stepsBetween(algorithm_, nodes_, traits.steps);
  const double latencyUs = acrossSteps * links.between.latencyUs +
                           std::max(0.0, traits.steps - acrossSteps) * links.inside.latencyUs;
  const double gapsUs =
      load_.insideMessages * links.inside.gapUs + load_.betweenMessages * links.between.gapUs;
  const double insideUs = load_.insideBytes * links.inside.usPerByte;
  const double betweenUs =
      load_.betweenBytes * links.between.usPerByte + sumBytes(algorithm_, nodes_, bytes_) * sumUsPerByte;
  if (stallsEveryRound(algorithm_, choice.ahead)) {
    return rounds * (latencyUs + gapsUs) + insideUs + betweenUs;
  }
  // Inside and between overlap; the shorter one shows in the first round only.
  double us =
      latencyUs + rounds * gapsUs + std::max(insideUs, betweenUs) + std::min(insideUs, betweenUs) / rounds;
  if (isChain(algorithm_)) {  // every further hop passes the first message whole
    const double first = static_cast<double>(std::min(chunk, bytes_));
    const double hopsInside = traits.steps - acrossSteps - (acrossSteps > 0 ? 0 : 1);
    us += first * (std::max(0.0, acrossSteps - 1) * links.between.usPerByte +
                   std::max(0.0, hopsInside) * links.inside.usPerByte);
  }
  return us;
}

}  // namespace peal

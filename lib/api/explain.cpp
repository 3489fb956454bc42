// Explaining the tuner: argument checks around lib/tuner/explain.h.
#include "lib/tuner/explain.h"

#include <fmt/format.h>

#include <vector>

#include "lib/api/api.h"
#include "lib/base/config.h"
#include "lib/base/nearest.h"
#include "lib/comm/host_links.h"
#include "peal/peal.h"

namespace peal {
namespace {

constexpr int kMostRanks = 4096;

// As a communicator on such nodes finds it.
ExplainQuestion questionOf(int kind, size_t bytes, int nodes, int ranksPerNode) {
  ExplainQuestion question{.kind = kind,
                           .collective = collectiveName(kind),
                           .bytes = bytes,
                           .nodes = nodes,
                           .ranksPerNode = ranksPerNode,
                           .network = {}};
  if (configuration()) {  // what is wrong with it is told by the explanation
    question.slotBytes = static_cast<size_t>(configuration()->integer(Knob::SlotBytes));
    if (nodes > 1) {
      ExpectedNetwork network =
          expectedNetwork({.slotBytes = question.slotBytes,
                           .slots = static_cast<int>(configuration()->integer(Knob::Slots)),
                           .ranksApart = ranksPerNode == 1});
      question.network = std::move(network.name);
      if (ranksPerNode == 1) {  // else calls are cut for the links inside nodes, too
        question.slotBytes = network.slotBytes;
        question.burst = network.burst;
      }
    }
  }
  return question;
}

Result<std::string> explained(const char* collective, size_t bytes, int nodes, int ranksPerNode) {
  if (nodes < 1 || ranksPerNode < 1 || nodes > kMostRanks / ranksPerNode) {
    return Error{
        pealInvalidArgument,
        fmt::format("pealExplainChoice: {} nodes of {} ranks: both must be at least 1 and give at most "
                    "{} ranks.",
                    nodes, ranksPerNode, kMostRanks)};
  }
  std::vector<std::string_view> names;
  for (int kind = pealStatAllReduce; kind <= pealStatReduce; ++kind) {
    if (std::string_view(collectiveName(kind)) == collective) {
      return explainChoice(questionOf(kind, bytes, nodes, ranksPerNode));
    }
    names.push_back(collectiveName(kind));
  }
  const std::optional<std::string_view> nearest = nearestName(collective, names);
  return Error{pealInvalidArgument,
               fmt::format("pealExplainChoice: \"{}\" is none of {}.{}", collective, fmt::join(names, ", "),
                           nearest ? fmt::format(" Was {} meant?", *nearest) : std::string())};
}

}  // namespace
}  // namespace peal

pealResult_t pealExplainChoice(const char* collective, size_t bytes, int nodes, int ranksPerNode,
                               const char** json) {
  return peal::api::guarded([&]() -> peal::Result<void> {
    if (collective == nullptr || json == nullptr) {
      return peal::api::nullArgument("pealExplainChoice", collective == nullptr ? "collective" : "json");
    }
    thread_local std::string text;
    peal::Result<std::string> made = peal::explained(collective, bytes, nodes, ranksPerNode);
    if (!made) {
      return made.error();
    }
    text = std::move(*made);
    *json = text.c_str();
    return {};
  });
}

// Explaining the tuner: argument checks around lib/tuner/explain.h.
#include "lib/tuner/explain.h"

#include <fmt/format.h>

#include <vector>

#include "lib/api/api.h"
#include "lib/base/config.h"
#include "lib/base/cpu.h"
#include "lib/base/nearest.h"
#include "lib/comm/host_links.h"
#include "lib/executor/box_shape.h"
#include "peal/peal.h"

namespace peal {
namespace {

constexpr int kMostRanks = 4096;

// What is asked, as the caller names it.
struct Asked {
  const char* function;
  const char* collective;
  size_t bytes;
  int nodes;
  int ranksPerNode;
  std::optional<GpuPath> path{};
};

// As a communicator on host memory of such nodes finds it.
void findOnHost(ExplainQuestion& question) {
  question.slotBytes = static_cast<size_t>(configuration()->integer(Knob::SlotBytes));
  question.crowded = question.nodes == 1 && question.ranksPerNode > allowedCpus();
  if (question.nodes == 1) {
    return;
  }
  ExpectedNetwork network = expectedNetwork({.slotBytes = question.slotBytes,
                                             .slots = static_cast<int>(configuration()->integer(Knob::Slots)),
                                             .ranksApart = question.ranksPerNode == 1});
  question.network = std::move(network.name);
  if (question.ranksPerNode == 1) {  // else calls are cut for the links inside nodes, too
    question.slotBytes = network.slotBytes;
    question.burst = network.burst;
  }
}

// On GPUs that have room for as many blocks as peal ever starts.
Result<void> findOnGpus(ExplainQuestion& question) {
  const int ranks = question.nodes * question.ranksPerNode;
  if (ranks > cuda::kMostRanks) {
    return Error{pealInvalidArgument,
                 fmt::format("{} ranks: a communicator on GPUs has at most {}.", ranks, cuda::kMostRanks)};
  }
  const auto channels = static_cast<int>(configuration()->integer(Knob::Channels));
  const Result<cuda::BoxShape> shape =
      cuda::configuredShape(ranks, channels > 0 ? channels : cuda::kMostChannels);
  if (!shape) {
    return shape.error();
  }
  question.slotBytes = shape->payloadBytes(Protocol::Simple);
  question.llBytes = shape->payloadBytes(Protocol::LL);
  question.ll128Bytes = shape->payloadBytes(Protocol::LL128);
  question.channels = shape->channels;
  if (question.nodes > 1) {
    question.network = expectedNetwork({.slotBytes = question.slotBytes,
                                        .slots = static_cast<int>(configuration()->integer(Knob::Slots)),
                                        .ranksApart = question.ranksPerNode == 1})
                           .name;
  }
  return {};
}

Result<std::string> explained(int kind, const Asked& asked) {
  ExplainQuestion question{.kind = kind,
                           .collective = collectiveName(kind),
                           .bytes = asked.bytes,
                           .nodes = asked.nodes,
                           .ranksPerNode = asked.ranksPerNode,
                           .network = {},
                           .path = asked.path};
  if (!configuration()) {
    return configuration().error();
  }
  if (asked.path) {
    PEAL_TRY(findOnGpus(question));
  } else {
    findOnHost(question);
  }
  return explainChoice(question);
}

Result<std::string> explained(const Asked& asked) {
  if (asked.nodes < 1 || asked.ranksPerNode < 1 || asked.nodes > kMostRanks / asked.ranksPerNode) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: {} nodes of {} ranks: both must be at least 1 and give at most "
                             "{} ranks.",
                             asked.function, asked.nodes, asked.ranksPerNode, kMostRanks)};
  }
  std::vector<std::string_view> names;
  for (int kind = pealStatAllReduce; kind <= pealStatReduce; ++kind) {
    if (std::string_view(collectiveName(kind)) == asked.collective) {
      return explained(kind, asked);
    }
    names.push_back(collectiveName(kind));
  }
  const std::optional<std::string_view> nearest = nearestName(asked.collective, names);
  return Error{
      pealInvalidArgument,
      fmt::format("{}: \"{}\" is none of {}.{}", asked.function, asked.collective, fmt::join(names, ", "),
                  nearest ? fmt::format(" Was {} meant?", *nearest) : std::string())};
}

Result<void> answer(const Asked& asked, const char** json) {
  thread_local std::string text;
  Result<std::string> made = explained(asked);
  if (!made) {
    return made.error();
  }
  text = std::move(*made);
  *json = text.c_str();
  return {};
}

}  // namespace
}  // namespace peal

pealResult_t pealExplainChoice(const char* collective, size_t bytes, int nodes, int ranksPerNode,
                               const char** json) {
  return peal::api::guarded([&]() -> peal::Result<void> {
    if (collective == nullptr || json == nullptr) {
      return peal::api::nullArgument("pealExplainChoice", collective == nullptr ? "collective" : "json");
    }
    return peal::answer({"pealExplainChoice", collective, bytes, nodes, ranksPerNode}, json);
  });
}

pealResult_t pealExplainGpuChoice(const char* collective, size_t bytes, int nodes, int ranksPerNode,
                                  const char* path, const char** json) {
  return peal::api::guarded([&]() -> peal::Result<void> {
    if (collective == nullptr || path == nullptr || json == nullptr) {
      return peal::api::nullArgument("pealExplainGpuChoice", collective == nullptr ? "collective"
                                                             : path == nullptr     ? "path"
                                                                                   : "json");
    }
    const std::optional<peal::GpuPath> known = peal::gpuPathNamed(path);
    if (!known) {
      return peal::Error{pealInvalidArgument,
                         fmt::format("pealExplainGpuChoice: \"{}\" is no path between GPUs; there are: {}.",
                                     path, fmt::join(peal::kGpuPathNames, ", "))};
    }
    return peal::answer({"pealExplainGpuChoice", collective, bytes, nodes, ranksPerNode, known}, json);
  });
}

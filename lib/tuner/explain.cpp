#include "lib/tuner/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "lib/base/config.h"
#include "lib/topology/described.h"
#include "lib/tuner/device_costs.h"
#include "lib/tuner/links_file.h"
#include "lib/tuner/tuner.h"

namespace peal {
namespace {

std::string costJson(const LinkCost& cost) {
  return fmt::format(R"({{"latencyUs": {}, "gapUs": {}, "usPerByte": {}}})", cost.latencyUs, cost.gapUs,
                     cost.usPerByte);
}

std::string costJson(const GpuCost& cost) {
  return fmt::format(
      R"({{"launchUs": {}, "blockUs": {}, "llUs": {}, "ll128Us": {}, "simpleUs": {}, "blockUsPerByte": {}, )"
      R"("linkUsPerByte": {}}})",
      cost.launchUs, cost.blockUs, cost.llUs, cost.ll128Us, cost.simpleUs, cost.blockUsPerByte,
      cost.linkUsPerByte);
}

std::string candidateJson(const Candidate& candidate, bool onGpu) {
  const Choice& choice = candidate.choice;
  const std::string travels = onGpu ? fmt::format(R"("protocol": "{}", "channels": {}, )",
                                                  protocolName(choice.protocol), choice.channels)
                                    : std::string();
  return fmt::format(
      R"({{"algorithm": "{}", "function": "{}", {}"chunkBytes": {}, "ahead": {}, "predictedUs": {:.2f}}})",
      algorithmName(choice.algorithm), candidate.text, travels, choice.chunkBytes, choice.ahead,
      candidate.us);
}

// Where the costs of links come from.
struct Costs {
  LinkTable links;
  bool fromFile = false;
  bool described = false;
  bool gpuFromFile = false;  // in part at least
};

Result<Costs> configuredCosts(const std::optional<GpuPath>& path) {
  Costs costs{.links = assumedLinks()};
  if (const std::string& file = configuration()->text(Knob::TunerFile); !file.empty()) {
    const Result<std::optional<LinkTable>> read = readLinksFile(file);
    if (!read) {
      return read.error();
    }
    costs.fromFile = read->has_value();
    costs.links = read->value_or(costs.links);
  }
  if (const std::string& file = configuration()->text(Knob::TopologyFile); !costs.fromFile && !file.empty()) {
    const Result<Topology> topology = readTopologyFile(file);
    if (!topology) {
      return topology.error();
    }
    costs.links = describedLinks(*topology, costs.links);
    costs.described = true;
  }
  costs.gpuFromFile = !(costs.links.gpu == GpuCost{});
  if (path) {
    costs.links.gpu = gpuCostOn(*path, costs.links.gpu);
  }
  return costs;
}

// The ranks in order, so many on each node.
struct EvenNodes {
  std::vector<int> table;
  Grouping nodes;
  EvenNodes(int nodeCount, int ranksPerNode)
      : table(groupingTableSize(static_cast<size_t>(nodeCount) * static_cast<size_t>(ranksPerNode))) {
    std::vector<int> labels;
    for (int rank = 0; rank < nodeCount * ranksPerNode; ++rank) {
      labels.push_back(rank / ranksPerNode);
    }
    nodes = groupRanks(labels, table);
  }
};

TunerQuestion callOf(const ExplainQuestion& question, const Grouping& nodes, const LinkTable& links) {
  return {.kind = question.kind,
          .bytes = question.bytes,
          .size = nodes.ranks,
          .deterministic = configuration()->integer(Knob::Deterministic) != 0,
          .slotBytes = question.slotBytes,
          .forced = configuration()->text(Knob::Algorithm),
          .crowded = question.crowded,
          .nodes = question.nodes > 1 ? &nodes : nullptr,
          .slots = static_cast<int>(configuration()->integer(Knob::Slots)),
          .burst = question.burst,
          .links = &links};
}

struct Answer {
  Choice choice;
  std::vector<Candidate> all;
  std::string reason;
};

Result<Answer> onHost(const TunerQuestion& asked) {
  const Result<Choice> choice = choose(asked);
  if (!choice) {
    return choice.error();
  }
  Answer answer{*choice, candidates(asked), {}};
  answer.reason = asked.forced == "auto" ? reasonFor(asked, *choice, answer.all)
                                         : fmt::format("PEAL_ALGO={} forces it", asked.forced);
  return answer;
}

// Of each algorithm and protocol the best number of channels.
std::vector<Candidate> bestChannels(const std::vector<Candidate>& all) {
  std::vector<Candidate> best;
  for (const Candidate& candidate : all) {
    const bool known = std::any_of(best.begin(), best.end(), [&](const Candidate& other) {
      return other.choice.algorithm == candidate.choice.algorithm &&
             other.choice.protocol == candidate.choice.protocol;
    });
    if (!known) {
      best.push_back(candidate);
    }
  }
  return best;
}

Result<Answer> onGpus(const ExplainQuestion& question, const TunerQuestion& call) {
  const DeviceQuestion asked{.call = call,
                             .llBytes = question.llBytes,
                             .ll128Bytes = question.ll128Bytes,
                             .channels = question.channels,
                             .path = *question.path,
                             .simpleOnly = question.nodes > 1,
                             .forced = configuration()->text(Knob::Protocol)};
  const Result<std::vector<Candidate>> all = candidatesOnDevice(asked);
  if (!all) {
    return all.error();
  }
  Answer answer{all->front().choice, bestChannels(*all), reasonOnDevice(asked, *all)};
  if (call.forced != "auto") {
    answer.reason += fmt::format("; PEAL_ALGO={} forces the algorithm", call.forced);
  }
  if (asked.forced != "auto") {
    answer.reason += fmt::format("; PEAL_PROTOCOL={} forces the protocol", asked.forced);
  }
  return answer;
}

std::string networkSentence(const ExplainQuestion& question) {
  if (question.nodes == 1) {
    return "";
  }
  return question.network.empty() ? "; no network between nodes can be used here"
         : question.burst == 1    ? fmt::format("; between nodes over {}", question.network)
                                  : fmt::format(
                                        "; between nodes over {}, where {} messages of {} bytes are "
                                           "best handed over together",
                                        question.network, question.burst, question.slotBytes);
}

std::string costSentence(const ExplainQuestion& question, const Costs& costs) {
  std::string sentence;
  if (costs.described) {
    sentence = "; the link costs are those that PEAL_TOPOLOGY_FILE describes, and assumed where it is silent";
  } else if (!costs.fromFile && (question.nodes > 1 || !question.path)) {
    sentence =
        configuration()->text(Knob::TunerFile).empty()
            ? "; the link costs are assumed: name a file with PEAL_TUNER_FILE that a communicator over "
              "several nodes has written"
            : "; the link costs are assumed: PEAL_TUNER_FILE does not exist yet";
  }
  if (question.path && !costs.gpuFromFile) {
    sentence +=
        "; the GPUs' costs are published figures of others, not measured here: PEAL_TUNER_FILE may say "
        "better";
  }
  return sentence;
}

}  // namespace

Result<std::string> explainChoice(const ExplainQuestion& question) {
  if (!configuration()) {
    return configuration().error();
  }
  const Result<Costs> costs = configuredCosts(question.path);
  if (!costs) {
    return costs.error();
  }
  const EvenNodes even(question.nodes, question.ranksPerNode);
  const TunerQuestion call = callOf(question, even.nodes, costs->links);
  const Result<Answer> answer = question.path ? onGpus(question, call) : onHost(call);
  if (!answer) {
    return answer.error();
  }
  const bool onGpu = question.path.has_value();
  std::string json;
  const auto out = std::back_inserter(json);
  fmt::format_to(out, "{{\n  \"collective\": \"{}\",\n  \"bytes\": {},\n  \"nodes\": {},\n",
                 question.collective, question.bytes, question.nodes);
  fmt::format_to(out,
                 "  \"ranksPerNode\": {},\n  \"links\": {{\"measured\": {}, \"described\": {}, \"inside\": "
                 "{}, \"between\": {}}},\n",
                 question.ranksPerNode, costs->fromFile, costs->described, costJson(costs->links.inside),
                 costJson(costs->links.between));
  if (onGpu) {
    fmt::format_to(out, "  \"gpus\": {{\"path\": \"{}\", \"fromFile\": {}, \"cost\": {}}},\n",
                   gpuPathName(*question.path), costs->gpuFromFile, costJson(costs->links.gpu));
  }
  json += "  \"candidates\": [";
  for (size_t i = 0; i < answer->all.size(); ++i) {
    fmt::format_to(out, "{}\n    {}", i == 0 ? "" : ",", candidateJson(answer->all[i], onGpu));
  }
  fmt::format_to(out, "\n  ],\n  \"chosen\": \"{}\",\n  \"reason\": \"{}{}{}\"\n}}\n",
                 algorithmName(answer->choice.algorithm), answer->reason, networkSentence(question),
                 costSentence(question, *costs));
  return json;
}

}  // namespace peal

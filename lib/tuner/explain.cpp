#include "lib/tuner/explain.h"

#include <fmt/format.h>

#include <iterator>
#include <vector>

#include "lib/base/config.h"
#include "lib/topology/described.h"
#include "lib/tuner/links_file.h"
#include "lib/tuner/tuner.h"

namespace peal {
namespace {

std::string costJson(const LinkCost& cost) {
  return fmt::format(R"({{"latencyUs": {}, "gapUs": {}, "usPerByte": {}}})", cost.latencyUs, cost.gapUs,
                     cost.usPerByte);
}

std::string candidateJson(const Candidate& candidate) {
  return fmt::format(
      R"({{"algorithm": "{}", "function": "{}", "chunkBytes": {}, "ahead": {}, "predictedUs": {:.2f}}})",
      algorithmName(candidate.choice.algorithm), candidate.text, candidate.choice.chunkBytes,
      candidate.choice.ahead, candidate.us);
}

}  // namespace

Result<std::string> explainChoice(const ExplainQuestion& question) {
  if (!configuration()) {
    return configuration().error();
  }
  const std::string& path = configuration()->text(Knob::TunerFile);
  Result<std::optional<LinkTable>> read = std::optional<LinkTable>();
  if (!path.empty()) {
    read = readLinksFile(path);
    if (!read) {
      return read.error();
    }
  }
  const bool known = read->has_value();
  LinkTable links = known ? **read : assumedLinks();
  const std::string& described = configuration()->text(Knob::TopologyFile);
  if (!known && !described.empty()) {
    const Result<Topology> topology = readTopologyFile(described);
    if (!topology) {
      return topology.error();
    }
    links = describedLinks(*topology, links);
  }
  const int ranks = question.nodes * question.ranksPerNode;
  std::vector<int> labels, table(groupingTableSize(static_cast<size_t>(ranks)));
  for (int rank = 0; rank < ranks; ++rank) {
    labels.push_back(rank / question.ranksPerNode);
  }
  const Grouping nodes = groupRanks(labels, table);
  const TunerQuestion asked{.kind = question.kind,
                            .bytes = question.bytes,
                            .size = ranks,
                            .deterministic = configuration()->integer(Knob::Deterministic) != 0,
                            .slotBytes = question.slotBytes,
                            .forced = configuration()->text(Knob::Algorithm),
                            .nodes = question.nodes > 1 ? &nodes : nullptr,
                            .slots = static_cast<int>(configuration()->integer(Knob::Slots)),
                            .burst = question.burst,
                            .links = &links};
  const Result<Choice> choice = choose(asked);
  if (!choice) {
    return choice.error();
  }
  const std::vector<Candidate> all = candidates(asked);
  std::string reason = asked.forced == "auto" ? reasonFor(asked, *choice, all)
                                              : fmt::format("PEAL_ALGO={} forces it", asked.forced);
  if (question.nodes > 1) {
    reason += question.network.empty() ? "; no network between nodes can be used here"
              : question.burst == 1    ? fmt::format("; between nodes over {}", question.network)
                                       : fmt::format(
                                             "; between nodes over {}, where {} messages of {} bytes are "
                                                "best handed over together",
                                             question.network, question.burst, question.slotBytes);
  }
  if (!known && !described.empty()) {
    reason += "; the link costs are those that PEAL_TOPOLOGY_FILE describes, and assumed where it is silent";
  } else if (!known) {
    reason += path.empty() ? "; the link costs are assumed: name a file with PEAL_TUNER_FILE that a "
                             "communicator over several nodes has written"
                           : "; the link costs are assumed: PEAL_TUNER_FILE does not exist yet";
  }
  std::string json;
  const auto out = std::back_inserter(json);
  fmt::format_to(out, "{{\n  \"collective\": \"{}\",\n  \"bytes\": {},\n  \"nodes\": {},\n",
                 question.collective, question.bytes, question.nodes);
  fmt::format_to(out,
                 "  \"ranksPerNode\": {},\n  \"links\": {{\"measured\": {}, \"described\": {}, \"inside\": "
                 "{}, \"between\": {}}},\n",
                 question.ranksPerNode, known, !known && !described.empty(), costJson(links.inside),
                 costJson(links.between));
  json += "  \"candidates\": [";
  for (size_t i = 0; i < all.size(); ++i) {
    fmt::format_to(out, "{}\n    {}", i == 0 ? "" : ",", candidateJson(all[i]));
  }
  fmt::format_to(out, "\n  ],\n  \"chosen\": \"{}\",\n  \"reason\": \"{}\"\n}}\n",
                 algorithmName(choice->algorithm), reason);
  return json;
}

}  // namespace peal

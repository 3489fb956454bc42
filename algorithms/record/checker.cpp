#include "algorithms/record/checker.h"

#include <fmt/format.h>

#include <iterator>

namespace peal::record {
namespace {

std::string circumstances(AlgorithmId algorithm, const Operation& operation) {
  const Blocks& blocks = operation.blocks;
  std::string nodes;
  if (operation.nodes.ranks != 0) {
    nodes = " on nodes";
    for (int rank = 0; rank < operation.ranks; ++rank) {
      nodes += fmt::format(" {}", operation.nodes.node(rank));
    }
    nodes += fmt::format(", ahead {}", operation.ahead);
  }
  return fmt::format("{}, {} ranks{}, root {}, {} elements in {} {}blocks, chunks of {}",
                     traitsOf(algorithm, operation.ranks).name, operation.ranks, nodes, operation.root,
                     blocks.total, blocks.parts, blocks.starts != nullptr ? "given " : "",
                     operation.chunkCount);
}

// Peers and chunks that no port could use; the player relies on there being none.
std::optional<Fault> checkBounds(const Program& program) {
  const int ranks = program.operation.ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    for (size_t at = 0; at < program.ranks[rank].size(); ++at) {
      const Step& step = program.ranks[rank][at];
      const unsigned bits = parts(step.verb);
      const auto illegal = [&](int peer) { return peer < 0 || peer >= ranks || peer == rank; };
      if (((bits & kFromOne) != 0 && illegal(step.from)) || ((bits & kToOne) != 0 && illegal(step.to))) {
        return Fault{Check::Peer, fmt::format("rank {} step {} {}: not a peer", rank, at, text(step))};
      }
      const size_t total = program.operation.blocks.total;
      if (step.chunk.offset > total || step.chunk.count > total - step.chunk.offset) {
        return Fault{Check::ChunkBounds, fmt::format("rank {} step {} {}: the array has {} elements", rank,
                                                     at, text(step), total)};
      }
    }
  }
  return std::nullopt;
}

// What the rank sends against cost.h's formulas.
void checkTraffic(const Program& program, AlgorithmId algorithm, int rank, std::vector<Fault>& faults) {
  const Operation& operation = program.operation;
  const Grouping nodes = operation.grouping();
  LinkTraffic sent;
  for (const Step& step : program.ranks[rank]) {
    const unsigned bits = parts(step.verb);
    if ((bits & kToAll) != 0) {
      sent = sent + sameToAll(step.chunk.count, nodes, rank);
    } else if ((bits & kToOne) != 0) {
      const bool inside = step.to >= 0 && step.to < operation.ranks && nodes.sameNode(rank, step.to);
      Traffic& to = inside ? sent.inside : sent.between;
      to = to + Traffic{1, step.chunk.count};
    }
  }
  const LinkTraffic want = trafficOf(algorithm, operation.blocks, nodes, rank, operation.root);
  const auto compare = [&](const Traffic& found, Traffic formula, const char* where) {
    formula.messages *= operation.rounds();
    if (found.messages != formula.messages) {
      faults.push_back({Check::Messages, fmt::format("rank {} sends {} messages{}, by the formula {}", rank,
                                                     found.messages, where, formula.messages)});
    }
    if (found.elements != formula.elements) {
      faults.push_back({Check::Elements, fmt::format("rank {} sends {} elements{}, by the formula {}", rank,
                                                     found.elements, where, formula.elements)});
    }
  };
  if (operation.nodes.ranks == 0) {
    compare(sent.all(), want.all(), "");
  } else {
    compare(sent.inside, want.inside, " inside its node");
    compare(sent.between, want.between, " to other nodes");
  }
}

std::string rankList(const RankSet& set, int ranks) {
  std::string list;
  for (int rank = 0; rank < ranks; ++rank) {
    if (set.has(rank)) {
      list += fmt::format("{}{}", list.empty() ? "" : " ", rank);
    }
  }
  return list;
}

// The outputs of one play against what the collective must compute and what cost.h promises.
class OutputCheck {
 public:
  OutputCheck(const Operation& operation, const AlgorithmTraits& promised)
      : operation_(operation),
        promised_(promised),
        reduces_(promised.collective != CollectiveKind::AllGather &&
                 promised.collective != CollectiveKind::Broadcast),
        everybody_(RankSet::all(operation.ranks)) {}

  std::optional<Fault> run(const Player& player) {
    expressions_.resize(static_cast<size_t>(player.segments()));
    for (int rank = 0; rank < operation_.ranks; ++rank) {
      for (int s = 0; s < player.segments(); ++s) {
        if (!player.hasOutput(rank, s)) {
          continue;
        }
        auto fault = checkValue(player.output(rank, s), player.owner(s));
        if (!fault) {
          fault = checkBits(player.output(rank, s), expressions_[static_cast<size_t>(s)]);
        }
        if (fault) {
          const Chunk where = player.segment(s);
          fault->text = fmt::format("rank {}'s output [{},{}) {}", rank, where.offset,
                                    where.offset + where.count, fault->text);
          return fault;
        }
      }
    }
    return std::nullopt;
  }

 private:
  RankSet wantedInputs(int owner) const {
    if (reduces_) {
      return everybody_;
    }
    return RankSet::of(promised_.collective == CollectiveKind::AllGather ? owner : operation_.root);
  }

  std::optional<Fault> checkValue(const Value& value, int owner) const {
    const RankSet want = wantedInputs(owner);
    if (!value.written) {
      return Fault{Check::Missing, "is never written"};
    }
    if (!(value.inputs == want)) {
      return Fault{Check::Missing,
                   fmt::format("holds the inputs of ranks {}, not of {}",
                               rankList(value.inputs, operation_.ranks), rankList(want, operation_.ranks))};
    }
    if (value.finished != reduces_) {
      return Fault{Check::Finish, reduces_ ? "was never finished" : "was finished though nothing is reduced"};
    }
    const int last = promised_.collective == CollectiveKind::Reduce ? operation_.root : owner;
    if (promised_.order == SumOrder::Rank && !value.rankOrder) {
      return Fault{Check::Order, fmt::format("is summed from rank {} to rank {}, not in rank order",
                                             value.first, value.last)};
    }
    if (promised_.order == SumOrder::Ring && (!value.cyclicOrder || value.last != last)) {
      return Fault{Check::Order,
                   fmt::format("is summed from rank {} to rank {}, not round the ring to rank {}",
                               value.first, value.last, last)};
    }
    if (promised_.exact ? value.roundings != promised_.roundings : value.roundings > promised_.roundings) {
      return Fault{Check::Roundings, fmt::format("is rounded {} times, by the formula {}", value.roundings,
                                                 promised_.roundings)};
    }
    return std::nullopt;
  }

  // The first rank of the first play says how an element is summed; all others do the same.
  static std::optional<Fault> checkBits(const Value& value, std::optional<uint64_t>& expression) {
    if (!expression) {
      expression = value.expression;
    }
    if (*expression != value.expression) {
      return Fault{Check::Bits, "is summed in another way than on the first rank, or in the first play"};
    }
    return std::nullopt;
  }

  const Operation& operation_;
  const AlgorithmTraits& promised_;
  bool reduces_;
  RankSet everybody_;
  std::vector<std::optional<uint64_t>> expressions_;  // of each segment
};

}  // namespace

std::vector<PlayOptions> plays(const AlgorithmTraits& promised, int ranks, Plays plays, uint64_t seed) {
  constexpr Schedule kSchedules[] = {Schedule::RoundRobin, Schedule::Backward, Schedule::Greedy,
                                     Schedule::Random,     Schedule::Starve,   Schedule::Starve};
  constexpr uint64_t kScheduleCount = std::size(kSchedules);
  // Neighbouring seeds must not walk through the choices in step with whatever the caller counts.
  const uint64_t mixed = seed * 0x9e3779b97f4a7c15u >> 20;
  std::vector<PlayOptions> list;
  for (const Buffers buffers : {Buffers::Apart, Buffers::InPlace}) {
    for (const Sends sends : {Sends::Bytes, Sends::References}) {
      const bool referenced = sends == Sends::References, inPlace = buffers == Buffers::InPlace;
      if ((inPlace && referenced && promised.inPlaceSend == InPlaceSend::BytesOnly) ||
          (plays == Plays::Sampled && (referenced == inPlace) != (mixed % 2 == 0))) {
        continue;
      }
      for (uint64_t i = 0; i < kScheduleCount; ++i) {
        if (plays == Plays::Sampled && i != (mixed / 2 + (inPlace ? 1 : 0)) % kScheduleCount) {
          continue;
        }
        const int starved = static_cast<int>((mixed + i * 7) % static_cast<uint64_t>(ranks));
        for (const int more : {0, 1, 7}) {
          if (plays == Plays::Full || more == 0) {
            list.push_back({promised.slots + more, 1 + more, buffers, sends, kSchedules[i], seed, starved});
          }
        }
      }
    }
  }
  return list;
}

std::vector<Fault> check(AlgorithmId algorithm, const Operation& operation, RecordedAlgorithm run,
                         std::span<const PlayOptions> plays) {
  const AlgorithmTraits promised = traitsOf(algorithm, operation.grouping(), operation.ahead);
  const Program program = recordProgram(operation, run, promised.stages);
  std::vector<Fault> faults;
  for (int rank = 0; rank < operation.ranks; ++rank) {
    checkTraffic(program, algorithm, rank, faults);
  }
  if (auto fault = checkBounds(program)) {
    faults.push_back(*fault);
  } else {
    Player player(program);
    OutputCheck outputs(operation, promised);
    for (const PlayOptions& options : plays) {
      auto found = player.play(options);
      if (!found) {
        found = outputs.run(player);
      }
      const int steps = player.longestChain();
      const bool asPromised = promised.exact ? steps == promised.steps : steps <= promised.steps;
      if (!found && operation.rounds() == 1 && !asPromised) {
        found = Fault{Check::Steps, fmt::format("the longest chain has {} messages, by the formula {}", steps,
                                                promised.steps)};
      }
      if (found) {
        faults.push_back({found->check, fmt::format("{} ({})", found->text, text(options))});
      }
    }
  }
  for (Fault& fault : faults) {
    fault.text =
        fmt::format("{}: {}: {}", circumstances(algorithm, operation), checkName(fault.check), fault.text);
  }
  return faults;
}

}  // namespace peal::record

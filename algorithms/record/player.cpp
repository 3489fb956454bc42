#include "algorithms/record/player.h"

#include <fmt/format.h>

#include <algorithm>

namespace peal::record {
namespace {

// SplitMix64: the schedule must be the same on every machine and library.
uint64_t nextRandom(uint64_t& state) {
  state += 0x9e3779b97f4a7c15u;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

const char* checkName(Check check) {
  // In the order of Check.
  static constexpr const char* kNames[kCheckCount] = {
      "peer",           "chunk bounds",  "messages",   "elements",  "steps",
      "chunk mismatch", "deadlock",      "unreceived", "absent",    "in place",
      "write outside",  "written twice", "missing",    "duplicate", "finish",
      "order",          "roundings",     "terms",      "bits"};
  return kNames[static_cast<int>(check)];
}

std::string text(const PlayOptions& options) {
  static constexpr const char* kSchedules[] = {"round robin", "backward", "greedy", "random", "starving"};
  std::string schedule = kSchedules[static_cast<int>(options.schedule)];
  if (options.schedule == Schedule::Random) {
    schedule += fmt::format(" seed {}", options.seed);
  } else if (options.schedule == Schedule::Starve) {
    schedule += fmt::format(" rank {}", options.starved);
  }
  return fmt::format("{}, {}, {} slot{} per link, {}",
                     options.buffers == Buffers::InPlace ? "in place" : "out of place",
                     options.sends == Sends::References ? "references" : "bytes", options.slots,
                     options.slots == 1 ? "" : "s", schedule);
}

// ---- the program ------------------------------------------------------------------------------------------

Player::Player(const Program& program)
    : program_(program),
      operation_(program.operation),
      ranks_(program.operation.ranks),
      everybody_(RankSet::all(program.operation.ranks)) {
  const Blocks& blocks = operation_.blocks;
  bounds_ = {0, blocks.total};
  for (int i = 0; i < blocks.parts; ++i) {
    bounds_.push_back(blocks.start(i));
  }
  for (const auto& steps : program_.ranks) {
    for (const Step& step : steps) {
      bounds_.push_back(step.chunk.offset);
      bounds_.push_back(step.chunk.offset + step.chunk.count);
    }
  }
  std::sort(bounds_.begin(), bounds_.end());
  bounds_.erase(std::unique(bounds_.begin(), bounds_.end()), bounds_.end());
  int block = 0;
  for (int s = 0; s < segments(); ++s) {
    while (blocks.start(block + 1) <= bounds_[s]) {
      ++block;
    }
    owners_.push_back(block);
  }
  for (const auto& steps : program_.ranks) {
    auto& moves = moves_.emplace_back();
    for (const Step& step : steps) {
      moves.push_back({range(step.chunk), step.from, step.to, parts(step.verb)});
    }
  }
}

Player::Range Player::range(Chunk chunk) const {
  const auto begin = std::lower_bound(bounds_.begin(), bounds_.end(), chunk.offset);
  const auto end = std::lower_bound(begin, bounds_.end(), chunk.offset + chunk.count);
  return {static_cast<int>(begin - bounds_.begin()), static_cast<int>(end - bounds_.begin())};
}

bool Player::hasInput(int rank, int segment) const {
  switch (operation_.collective) {
    case CollectiveKind::AllGather:
      return owner(segment) == rank;
    case CollectiveKind::Broadcast:
      return rank == operation_.root;
    default:
      return true;
  }
}

bool Player::hasOutput(int rank, int segment) const {
  switch (operation_.collective) {
    case CollectiveKind::ReduceScatter:
      return owner(segment) == rank;
    case CollectiveKind::Reduce:
      return rank == operation_.root;
    default:
      return true;
  }
}

// ---- schedules --------------------------------------------------------------------------------------------

void Player::reset(const PlayOptions& options) {
  const size_t ranks = static_cast<size_t>(ranks_);
  const size_t cells = ranks * segments();
  options_ = options;
  outputs_.assign(cells, Value{});
  readers_.assign(options.buffers == Buffers::InPlace ? cells : 0, 0);
  links_.assign(ranks * ranks, LinkState{});
  messages_.resize(ranks * ranks * options.slots);
  values_.clear();
  stagings_.clear();
  staged_.assign(ranks, 0);
  at_.assign(ranks, 0);
  verified_.assign(ranks, 0);
  asleep_.assign(ranks, 0);
  terms_.assign(ranks, {});
  depth_.assign(ranks, 0);
  order_.clear();
  for (int i = 0; i < ranks_; ++i) {
    order_.push_back(options.schedule == Schedule::Backward ? ranks_ - 1 - i : i);
  }
  random_ = options.seed;
  longestChain_ = 0;
  fault_.reset();
}

std::optional<Fault> Player::play(const PlayOptions& options) {
  reset(options);
  while (schedulePass()) {
  }
  return fault_ ? fault_ : ending();
}

// Gives every rank a turn; false if none could move.
bool Player::schedulePass() {
  if (options_.schedule == Schedule::Starve) {
    return starvePass(options_.starved);
  }
  if (options_.schedule == Schedule::Random) {
    return randomPass();
  }
  bool moved = false;
  for (const int rank : order_) {
    moved |= advance(rank, options_.schedule == Schedule::Greedy ? -1 : 1) > 0;
  }
  return moved;
}

bool Player::starvePass(int starved) {
  bool moved = false;
  for (const int rank : order_) {
    moved |= rank != starved && asleep_[rank] == 0 && advance(rank, -1) > 0;
  }
  return moved || advance(starved, 1) > 0;
}

bool Player::randomPass() {
  for (size_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[nextRandom(random_) % (i + 1)]);
  }
  bool moved = false;
  for (const int rank : order_) {
    moved |= advance(rank, 1 + static_cast<int>(nextRandom(random_) % 3)) > 0;
  }
  return moved;
}

// Executes up to `most` steps of a rank (all it can if negative); returns how many.
int Player::advance(int rank, int most) {
  int steps = 0;
  while (steps != most && tryStep(rank)) {
    ++steps;
  }
  return steps;
}

bool Player::tryStep(int rank) {
  if (asleep_[rank] != 0 || fault_) {
    return false;
  }
  if (at_[rank] == moves_[rank].size() || !ready(rank, moves_[rank][at_[rank]])) {
    asleep_[rank] = 1;
    return false;
  }
  const Move& move = moves_[rank][at_[rank]];
  actor_ = rank;
  execute(rank, move);
  if (fault_) {
    return false;
  }
  ++at_[rank];
  verified_[rank] = 0;
  return true;
}

// ---- waiting ----------------------------------------------------------------------------------------------

bool Player::ready(int rank, const Move& move) {
  const auto arrived = [&](int peer) { return link(peer, rank).posted > link(peer, rank).released; };
  const auto credit = [&](int peer) {
    return link(rank, peer).posted - link(rank, peer).released < static_cast<size_t>(options_.slots);
  };
  if ((move.bits & kFromOne) != 0 && !arrived(move.from)) {
    return false;
  }
  if ((move.bits & kToOne) != 0 && !credit(move.to)) {
    return false;
  }
  if ((move.bits & (kFromAll | kToAll)) != 0) {
    // What was found ready stays so until this rank itself moves: go on where the last look ended.
    for (int& peer = verified_[rank]; peer < ranks_; ++peer) {
      if (peer != rank && !((move.bits & kFromAll) != 0 ? arrived(peer) : credit(peer))) {
        return false;
      }
    }
  }
  if ((move.bits & kToAll) != 0 && options_.sends == Sends::Bytes && staged_[rank] == options_.staging) {
    return false;
  }
  return (move.bits & kKeeps) == 0 || mayOverwrite(rank, move.range);
}

// port.h: before a part of `in` is overwritten in place, references to it must have been read.
bool Player::mayOverwrite(int rank, Range range) const {
  if (options_.buffers == Buffers::Apart || options_.sends == Sends::Bytes) {
    return true;
  }
  for (int s = range.begin; s < range.end; ++s) {
    if (readers_[cell(rank, s)] != 0) {
      return false;
    }
  }
  return true;
}

std::string Player::waitsFor(int rank) {
  const Step& step = program_.ranks[rank][at_[rank]];
  const unsigned bits = parts(step.verb);
  std::string reasons;
  for (int peer = 0; peer < ranks_; ++peer) {
    const bool receives = (bits & kFromAll) != 0 || step.from == peer;
    const bool sends = (bits & kToAll) != 0 || step.to == peer;
    if (peer != rank && receives && link(peer, rank).posted == link(peer, rank).released) {
      reasons += fmt::format(", a message from {}", peer);
    }
    if (peer != rank && sends &&
        link(rank, peer).posted - link(rank, peer).released == static_cast<size_t>(options_.slots)) {
      reasons += fmt::format(", a slot to {}", peer);
    }
  }
  if (reasons.empty()) {
    reasons = (bits & kToAll) != 0 ? ", staging memory" : ", readers of its references";
  }
  return fmt::format("rank {} at step {} {} waits for {}", rank, at_[rank], text(step), reasons.substr(2));
}

// After the last move: everything must be done and nothing left over.
std::optional<Fault> Player::ending() {
  std::string waiting;
  int waits = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (at_[rank] < program_.ranks[rank].size() && ++waits <= 4) {
      waiting += (waits == 1 ? "" : "; ") + waitsFor(rank);
    }
  }
  if (waits > 0) {
    return Fault{Check::Deadlock, waiting + (waits > 4 ? fmt::format("; and {} more", waits - 4) : "")};
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!terms_[rank].empty()) {
      return Fault{Check::Terms, fmt::format("rank {} never sums {} term(s)", rank, terms_[rank].size())};
    }
  }
  for (int from = 0; from < ranks_; ++from) {
    for (int to = 0; to < ranks_; ++to) {
      if (link(from, to).posted != link(from, to).released) {
        return Fault{Check::Unreceived, fmt::format("rank {} never received {} message(s) of rank {}", to,
                                                    link(from, to).posted - link(from, to).released, from)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace peal::record

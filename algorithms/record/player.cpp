#include "algorithms/record/player.h"

#include <fmt/format.h>

#include <algorithm>

namespace peal {
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
      "peer",     "chunk bounds", "messages", "elements", "steps",         "chunk mismatch",
      "deadlock", "unreceived",   "absent",   "in place", "write outside", "written twice",
      "missing",  "duplicate",    "finish",   "order",    "roundings"};
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
    case Collective::AllGather:
      return owner(segment) == rank;
    case Collective::Broadcast:
      return rank == operation_.root;
    default:
      return true;
  }
}

bool Player::hasOutput(int rank, int segment) const {
  switch (operation_.collective) {
    case Collective::ReduceScatter:
      return owner(segment) == rank;
    case Collective::Reduce:
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

// ---- executing --------------------------------------------------------------------------------------------

Player::Message& Player::message(int from, int to, size_t index) {
  const size_t slots = static_cast<size_t>(options_.slots);
  return messages_[(static_cast<size_t>(from) * ranks_ + to) * slots + index % slots];
}

void Player::fail(Check check, const std::string& what) {
  if (!fault_) {
    const size_t at = at_[actor_];
    fault_ = Fault{check,
                   fmt::format("rank {} step {} {}: {}", actor_, at, text(program_.ranks[actor_][at]), what)};
  }
}

void Player::execute(int rank, const Move& move) {
  if ((move.bits & (kFromOne | kFromAll)) != 0 && !sameChunks(rank, move)) {
    return;
  }
  // Values are computed before any is kept: a verb reads all of a position before it writes it.
  const size_t firstValue = values_.size();
  for (int s = move.range.begin; s < move.range.end; ++s) {
    values_.push_back(valueOf(rank, move, s));
  }
  if ((move.bits & kKeeps) != 0) {
    for (int s = move.range.begin; s < move.range.end; ++s) {
      keep(rank, values_[firstValue + (s - move.range.begin)], s);
    }
  }
  if (fault_) {
    return;
  }
  if ((move.bits & (kToOne | kToAll)) != 0) {
    post(rank, move, firstValue);
  } else {
    values_.resize(firstValue);
  }
  for (int peer = 0; (move.bits & kFromAll) != 0 && peer < ranks_; ++peer) {
    if (peer != rank) {
      release(peer, rank);
    }
  }
  if ((move.bits & kFromOne) != 0) {
    release(move.from, rank);
  }
}

// Looks at the message(s) about to be received; also takes over how long a chain they end.
bool Player::sameChunks(int rank, const Move& move) {
  const bool all = (move.bits & kFromAll) != 0;
  for (int peer = all ? 0 : move.from; peer < (all ? ranks_ : move.from + 1); ++peer) {
    if (peer == rank) {
      continue;
    }
    const Message& got = message(peer, rank, link(peer, rank).released);
    depth_[rank] = std::max(depth_[rank], got.depth);
    const bool bothEmpty = got.range.begin == got.range.end && move.range.begin == move.range.end;
    if (!bothEmpty && (got.range.begin != move.range.begin || got.range.end != move.range.end)) {
      fail(Check::ChunkMismatch,
           fmt::format("rank {} sent [{},{})", peer, bounds_[got.range.begin], bounds_[got.range.end]));
      return false;
    }
  }
  return true;
}

Value Player::valueOf(int rank, const Move& move, int segment) {
  Value value;
  if ((move.bits & kFromAll) != 0) {
    for (int peer = 0; peer < ranks_; ++peer) {
      const Value part = peer == rank ? ownInput(rank, segment) : received(peer, rank, segment);
      if (peer == 0) {
        value = part;
      } else {
        reduceInto(value, part);
      }
    }
    value.roundings = static_cast<int16_t>(value.roundings + (ranks_ > 1 ? 1 : 0));
  } else if ((move.bits & kFromOne) != 0) {
    value = received(move.from, rank, segment);
    if ((move.bits & kUsesIn) != 0) {
      reduceInto(value, ownInput(rank, segment));
      ++value.roundings;
    }
  } else {
    value = (move.bits & kUsesIn) != 0 ? ownInput(rank, segment) : ownOutput(rank, segment);
  }
  if ((move.bits & kFinishes) != 0) {
    if (value.finished || !(value.inputs == everybody_)) {
      fail(Check::Finish,
           value.finished ? "finishes a value that is already finished" : "finishes a sum that lacks inputs");
    }
    value.finished = true;
  }
  return value;
}

Value Player::ownInput(int rank, int segment) {
  const Chunk where = this->segment(segment);
  if (!hasInput(rank, segment)) {
    fail(Check::Absent,
         fmt::format("rank {} has no input at [{},{})", rank, where.offset, where.offset + where.count));
  } else if (options_.buffers == Buffers::InPlace && output(rank, segment).written) {
    fail(Check::InPlace, fmt::format("rank {}'s output has overwritten its input at [{},{})", rank,
                                     where.offset, where.offset + where.count));
  }
  return Value::input(rank);
}

Value Player::ownOutput(int rank, int segment) {
  const Value& value = output(rank, segment);
  if (!value.written) {
    const Chunk where = this->segment(segment);
    fail(Check::Absent, fmt::format("rank {} has not written its output at [{},{})", rank, where.offset,
                                    where.offset + where.count));
  }
  return value;
}

Value Player::received(int from, int to, int segment) {
  const Message& got = message(from, to, link(from, to).released);
  switch (got.source) {
    case Source::Input:  // the sender's step saw it intact, and nobody overwrites it before this
      return ownInput(from, segment);
    case Source::Output:
      return ownOutput(from, segment);
    case Source::Bytes:
      break;
  }
  return values_[got.firstValue + (segment - got.range.begin)];
}

void Player::reduceInto(Value& sum, const Value& right) {
  if (sum.inputs.meets(right.inputs)) {
    fail(Check::Duplicate, fmt::format("an input is in the sum twice (rank {}'s among them)", right.last));
  }
  if (sum.finished || right.finished) {
    fail(Check::Finish, "goes on summing a value that is already finished");
  }
  sum.append(right, ranks_);
}

void Player::keep(int rank, const Value& value, int segment) {
  const Chunk where = this->segment(segment);
  if (!hasOutput(rank, segment)) {
    fail(Check::WriteOutside,
         fmt::format("the rank has no output at [{},{})", where.offset, where.offset + where.count));
  } else if (output(rank, segment).written) {
    fail(Check::WrittenTwice,
         fmt::format("output [{},{}) was written before", where.offset, where.offset + where.count));
  }
  outputs_[cell(rank, segment)] = value;
}

void Player::post(int rank, const Move& move, size_t firstValue) {
  // Only what lies in memory as it is sent can be referenced.
  const bool plain = (move.bits & (kFromOne | kFromAll | kKeeps)) == 0;
  Message sent{move.range, Source::Bytes, firstValue, -1, depth_[rank] + 1};
  if (options_.sends == Sends::References && plain) {
    sent.source = (move.bits & kUsesOut) != 0 ? Source::Output : Source::Input;
    values_.resize(firstValue);
  } else if ((move.bits & kToAll) != 0 && ranks_ > 1) {
    sent.staging = static_cast<int>(stagings_.size());
    stagings_.push_back(ranks_ - 1);
    ++staged_[rank];
  }
  longestChain_ = std::max(longestChain_, sent.depth);
  const bool all = (move.bits & kToAll) != 0;
  for (int peer = all ? 0 : move.to; peer < (all ? ranks_ : move.to + 1); ++peer) {
    if (peer == rank) {
      continue;
    }
    message(rank, peer, link(rank, peer).posted++) = sent;
    asleep_[peer] = 0;
    if (sent.source == Source::Input && options_.buffers == Buffers::InPlace) {
      for (int s = move.range.begin; s < move.range.end; ++s) {
        ++readers_[cell(rank, s)];
      }
    }
  }
}

void Player::release(int from, int to) {
  const Message& got = message(from, to, link(from, to).released++);
  asleep_[from] = 0;
  if (got.staging >= 0 && --stagings_[got.staging] == 0) {
    --staged_[from];
  }
  if (got.source == Source::Input && options_.buffers == Buffers::InPlace) {
    for (int s = got.range.begin; s < got.range.end; ++s) {
      --readers_[cell(from, s)];
    }
  }
}

}  // namespace peal

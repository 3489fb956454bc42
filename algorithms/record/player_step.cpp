// The player's steps: what a verb does to symbolic values, messages and outputs.
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/record/player.h"

namespace peal::record {

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
  if ((move.bits & kHolds) != 0) {
    holdTerm(rank, move);
    return;
  }
  if ((move.bits & kSums) != 0 && !sameTerms(rank, move)) {
    return;
  }
  // Values are computed before any is kept: a verb reads all of a position before it writes it.
  const size_t firstValue = values_.size();
  for (int s = move.range.begin; s < move.range.end; ++s) {
    values_.push_back(valueOf(rank, move, s));
  }
  if ((move.bits & kKeeps) != 0) {
    for (int s = move.range.begin; s < move.range.end; ++s) {
      keep(rank, values_[firstValue + (s - move.range.begin)], s, (move.bits & kPartial) != 0);
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
  if ((move.bits & kSums) != 0) {
    for (const Term& term : terms_[rank]) {
      if (term.source == Source::Bytes) {
        release(term.from, rank);
      }
    }
    terms_[rank].clear();
  }
}

// port.h: at most one term of each rank; a message keeps its slot until the sum.
void Player::holdTerm(int rank, const Move& move) {
  const Source source = (move.bits & kUsesIn) != 0    ? Source::Input
                        : (move.bits & kUsesOut) != 0 ? Source::Output
                                                      : Source::Bytes;
  const int from = source == Source::Bytes ? move.from : rank;
  for (const Term& term : terms_[rank]) {
    if (term.from == from) {
      fail(Check::Terms, fmt::format("holds two terms of rank {}", from));
      return;
    }
  }
  terms_[rank].push_back({move.range, from, source});
}

bool Player::sameTerms(int rank, const Move& move) {
  if (terms_[rank].empty()) {
    fail(Check::Terms, "sums no terms");
    return false;
  }
  for (const Term& term : terms_[rank]) {
    const bool bothEmpty = term.range.begin == term.range.end && move.range.begin == move.range.end;
    if (!bothEmpty && (term.range.begin != move.range.begin || term.range.end != move.range.end)) {
      fail(Check::ChunkMismatch, fmt::format("the term of rank {} is [{},{})", term.from,
                                             bounds_[term.range.begin], bounds_[term.range.end]));
      return false;
    }
  }
  return true;
}

Value Player::sumOfTerms(int rank, int segment) {
  Value sum;
  bool first = true;
  for (const Term& term : terms_[rank]) {
    const Value part = term.source == Source::Input    ? ownInput(rank, segment)
                       : term.source == Source::Output ? ownOutput(rank, segment)
                                                       : received(term.from, rank, segment);
    if (first) {
      sum = part;
      sum.partial = false;
      first = false;
    } else {
      reduceInto(sum, part);
    }
  }
  if (terms_[rank].size() > 1) {
    sum.round();
  }
  return sum;
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
  if ((move.bits & kSums) != 0) {
    value = sumOfTerms(rank, segment);
  } else if ((move.bits & kFromAll) != 0) {
    for (int peer = 0; peer < ranks_; ++peer) {
      const Value part = peer == rank ? ownInput(rank, segment) : received(peer, rank, segment);
      if (peer == 0) {
        value = part;
      } else {
        reduceInto(value, part);
      }
    }
    if (ranks_ > 1) {
      value.round();
    }
  } else if ((move.bits & kFromOne) != 0) {
    value = received(move.from, rank, segment);
    if ((move.bits & kUsesIn) != 0) {
      reduceInto(value, ownInput(rank, segment));
      value.round();
    }
  } else {
    value = (move.bits & kUsesIn) != 0 ? ownInput(rank, segment) : ownOutput(rank, segment);
    if (value.partial) {
      fail(Check::InPlace, "hands over, perhaps by reference, what will be overwritten");
    }
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

void Player::keep(int rank, const Value& value, int segment, bool partial) {
  const Chunk where = this->segment(segment);
  if (!hasOutput(rank, segment)) {
    fail(Check::WriteOutside,
         fmt::format("the rank has no output at [{},{})", where.offset, where.offset + where.count));
  } else if (output(rank, segment).written && !output(rank, segment).partial) {
    fail(Check::WrittenTwice,
         fmt::format("output [{},{}) was written before", where.offset, where.offset + where.count));
  }
  Value& kept = outputs_[cell(rank, segment)];
  kept = value;
  kept.partial = partial;
}

void Player::post(int rank, const Move& move, size_t firstValue) {
  // Only what lies in memory as it is sent can be referenced.
  const bool plain = (move.bits & (kFromOne | kFromAll | kKeeps | kSums)) == 0;
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

}  // namespace peal::record

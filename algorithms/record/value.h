// A symbolic element: which ranks' inputs are in it, in which order, how often rounded, finished or not; and
// a hash of the whole expression, by which two sums are known to have the same bits.
//
// What the player moves around instead of numbers. Where an element lies needs no symbol: a verb reads and
// writes the same positions, and the player compares the sender's chunk with the receiver's.
#pragma once
#include <cstdint>

namespace peal::record {

constexpr int kMaxRecordedRanks = 128;

class RankSet {
 public:
  void add(int rank) { words_[rank / 64] |= uint64_t{1} << (rank % 64); }
  bool has(int rank) const { return (words_[rank / 64] >> (rank % 64) & 1) != 0; }
  bool meets(const RankSet& other) const {
    return ((words_[0] & other.words_[0]) | (words_[1] & other.words_[1])) != 0;
  }
  void unite(const RankSet& other) {
    words_[0] |= other.words_[0];
    words_[1] |= other.words_[1];
  }
  bool operator==(const RankSet&) const = default;

  static RankSet of(int rank) {
    RankSet set;
    set.add(rank);
    return set;
  }
  static RankSet all(int ranks) {
    RankSet set;
    for (int rank = 0; rank < ranks; ++rank) {
      set.add(rank);
    }
    return set;
  }

 private:
  uint64_t words_[2] = {0, 0};
};

struct Value {
  RankSet inputs;
  uint64_t expression = 0;
  int16_t first = -1;  // rank whose input came first in the sum, and last
  int16_t last = -1;
  int16_t roundings = 0;
  bool written : 1 = false;     // false: nothing was ever stored here
  bool finished : 1 = false;    // "finish" was applied
  bool partial : 1 = false;     // stored to be overwritten
  bool rankOrder : 1 = true;    // each next input came from a higher rank
  bool cyclicOrder : 1 = true;  // each next input came from the next rank round the ring

  // A rank's own input, the pre-multiplication done.
  static Value input(int rank) {
    Value value;
    value.inputs.add(rank);
    value.expression = mixed(static_cast<uint64_t>(rank) + 1);
    value.first = value.last = static_cast<int16_t>(rank);
    value.written = true;
    return value;
  }

  // *this op right. The sum's order is kept only when `right` is a single input: a op (b op c) is neither.
  void append(const Value& right, int ranks) {
    const bool single = right.first == right.last;
    rankOrder = rankOrder && single && right.first > last;
    cyclicOrder = cyclicOrder && single && right.first == (last + 1) % ranks;
    inputs.unite(right.inputs);
    expression = mixed(expression * 3 + right.expression);
    last = right.last;
    roundings = roundings > right.roundings ? roundings : right.roundings;
  }

  // A sum of several terms becomes an element of the type.
  void round() {
    ++roundings;
    expression = mixed(~expression);
  }

 private:
  static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 29);
  }
};

}  // namespace peal::record

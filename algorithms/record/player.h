// Plays the recordings of all ranks against each other, on symbolic values, over links with few slots.
//
// Called by the checker. One play has one schedule (which rank moves next), one number of slots, buffers
// apart or in place, and messages as bytes or as references read at the moment they are received. It stops
// at the first fault: what no port could execute, or what would compute something else than was asked.
// Holds the rules of port.h; knows no algorithm.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "algorithms/record/recorder.h"
#include "algorithms/record/value.h"

namespace peal::record {

// What is checked; every fault belongs to one of these.
enum class Check : uint8_t {
  Peer,           // a peer is the rank itself or does not exist
  ChunkBounds,    // a chunk reaches past the array
  Messages,       // a rank sends more or fewer messages than the formula
  Elements,       // ... elements
  Steps,          // the longest chain of messages differs from the formula
  ChunkMismatch,  // a receiver expects another chunk than was sent
  Deadlock,       // all ranks that are not done wait
  Unreceived,     // a message was never received
  Absent,         // input or output is read where there is none
  InPlace,        // own input is read after the output has overwritten it
  WriteOutside,   // output is written where the rank has none
  WrittenTwice,   // an output element is written more than once
  Missing,        // an output element is never written, or inputs lack in it
  Duplicate,      // an input is in a sum twice
  Finish,         // "finish" was applied to a partial sum, twice, or not at all
  Order,          // summed in another order than promised
  Roundings,      // rounded more or less often than promised
  Terms,          // a sum's terms are not what the verbs allow
  Bits,           // ranks that get the same element sum it in different ways, or two plays do
};

constexpr int kCheckCount = 19;
const char* checkName(Check check);

struct Fault {
  Check check;
  std::string text;
};

enum class Buffers : uint8_t { Apart, InPlace };
enum class Sends : uint8_t { Bytes, References };
enum class Schedule : uint8_t {
  RoundRobin,  // each rank one step in turn
  Backward,    // the same, from the highest rank
  Greedy,      // each rank as far as it gets
  Random,      // a seeded random rank, for a random number of steps
  Starve,      // one rank moves only when no other can
};

struct PlayOptions {
  int slots = 1;    // per link
  int staging = 1;  // messages to all that a rank can stage before every receiver has released the oldest
  Buffers buffers = Buffers::Apart;
  Sends sends = Sends::Bytes;
  Schedule schedule = Schedule::RoundRobin;
  uint64_t seed = 1;  // Random
  int starved = 0;    // Starve
};

std::string text(const PlayOptions& options);

class Player {
 public:
  // At most kMaxRecordedRanks ranks; every peer and chunk legal (checker.cpp, checkBounds). The program must
  // outlive the player.
  explicit Player(const Program& program);

  std::optional<Fault> play(const PlayOptions& options);

  // ---- of the last play ----
  int longestChain() const { return longestChain_; }

  // ---- of the program ----
  // The array falls into segments which every chunk holds whole or not at all.
  int segments() const { return static_cast<int>(bounds_.size()) - 1; }
  Chunk segment(int s) const { return {bounds_[s], bounds_[s + 1] - bounds_[s]}; }
  int owner(int segment) const { return owners_[segment]; }  // of the block it is in, if cut per rank
  bool hasOutput(int rank, int segment) const;
  bool hasInput(int rank, int segment) const;
  const Value& output(int rank, int segment) const { return outputs_[cell(rank, segment)]; }

 private:
  struct Range {
    int begin;
    int end;
  };
  // A step, made ready for playing.
  struct Move {
    Range range;
    int from;
    int to;
    unsigned bits;  // kFromOne ... kPartial
  };
  enum class Source : uint8_t { Bytes, Input, Output };
  struct Message {
    Range range;
    Source source;
    size_t firstValue;  // Bytes: in values_
    int staging;        // of a message to all: in stagings_; otherwise -1
    int depth;          // messages in the longest chain that ends with this one
  };
  struct LinkState {
    size_t posted = 0;
    size_t released = 0;
  };
  // A term that a rank holds: a message of `from`, or own input or output.
  struct Term {
    Range range;
    int from;
    Source source;
  };

  size_t cell(int rank, int segment) const { return static_cast<size_t>(rank) * segments() + segment; }
  Range range(Chunk chunk) const;
  LinkState& link(int from, int to) { return links_[static_cast<size_t>(from) * ranks_ + to]; }
  Message& message(int from, int to, size_t index);

  void reset(const PlayOptions& options);
  bool schedulePass();
  bool starvePass(int starved);
  bool randomPass();
  int advance(int rank, int most);
  bool tryStep(int rank);
  bool ready(int rank, const Move& move);
  bool mayOverwrite(int rank, Range range) const;
  std::string waitsFor(int rank);
  std::optional<Fault> ending();

  void execute(int rank, const Move& move);
  bool sameChunks(int rank, const Move& move);
  void holdTerm(int rank, const Move& move);
  bool sameTerms(int rank, const Move& move);
  Value valueOf(int rank, const Move& move, int segment);
  Value sumOfTerms(int rank, int segment);
  Value ownInput(int rank, int segment);
  Value ownOutput(int rank, int segment);
  Value received(int from, int to, int segment);
  void reduceInto(Value& sum, const Value& right);
  void keep(int rank, const Value& value, int segment, bool partial);
  void post(int rank, const Move& move, size_t firstValue);
  void release(int from, int to);
  void fail(Check check, const std::string& what);

  const Program& program_;
  const Operation& operation_;
  int ranks_;
  std::vector<size_t> bounds_;
  std::vector<int> owners_;
  std::vector<std::vector<Move>> moves_;  // of each rank
  RankSet everybody_;

  PlayOptions options_;
  std::vector<Value> outputs_;
  std::vector<uint16_t> readers_;  // references to this input cell not yet received; in place only
  std::vector<LinkState> links_;
  std::vector<Message> messages_;  // slots per link
  std::vector<Value> values_;      // of messages in bytes
  std::vector<int> stagings_;      // receivers that have not released it
  std::vector<int> staged_;        // per rank: stagings in use
  std::vector<size_t> at_;         // per rank: next step
  std::vector<int> verified_;      // per rank: peers already found ready for the next step
  std::vector<char> asleep_;       // per rank: could not move, and no message or release has come since
  std::vector<std::vector<Term>> terms_;  // per rank: held for its next sum
  std::vector<int> depth_;
  std::vector<int> order_;
  uint64_t random_ = 0;
  int longestChain_ = 0;
  int actor_ = 0;  // rank whose step is being executed, for the fault's text
  std::optional<Fault> fault_;
};

}  // namespace peal::record

// The recording port: writes an algorithm's verbs down instead of executing them.
//
// Checker, simulator and drawings read what it recorded. A recording of all ranks is a Program. It never
// looks at what a verb means: that is the player's part.
#pragma once
#include <string>
#include <vector>

#include "algorithms/cost.h"
#include "algorithms/port.h"

namespace peal::record {

enum class Verb : uint8_t {
  Send,
  CopySend,
  SendOut,
  Recv,
  RecvCopySend,
  RecvReduceSend,
  RecvReduceCopy,
  RecvReduceCopySend,
  Copy,
  CopyFinish,
  SendAll,
  SendOutAll,
  RecvReduceAll,
  Hold,
  HoldIn,
  HoldOut,
  SumSend,
  SumKeep,
  SumCopy,
};

// What a verb consists of: the table of port.h, as bits.
constexpr unsigned kFromOne = 1;    // takes a message from one peer
constexpr unsigned kFromAll = 2;    // takes a message from every other rank
constexpr unsigned kUsesIn = 4;     // own input is (part of) the value
constexpr unsigned kUsesOut = 8;    // own output, written before, is the value
constexpr unsigned kKeeps = 16;     // the value is written to out
constexpr unsigned kFinishes = 32;  // ... and is final
constexpr unsigned kToOne = 64;
constexpr unsigned kToAll = 128;
constexpr unsigned kHolds = 256;     // the value becomes a term of the next sum
constexpr unsigned kSums = 512;      // the value is the sum of the terms held
constexpr unsigned kPartial = 1024;  // what is kept may be overwritten

unsigned parts(Verb verb);
const char* verbName(Verb verb);

// One verb of one rank. A peer is -1 where the verb has none or means every other rank.
struct Step {
  Verb verb;
  int from;
  int to;
  Chunk chunk;
};

// "recvReduceSend(from 2, to 1, [4,7))"
std::string text(const Step& step);

class RecordingPort {
 public:
  RecordingPort(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const { return rank_; }
  int size() const { return size_; }

  void send(int to, Chunk c) { add(Verb::Send, -1, to, c); }
  void copySend(int to, Chunk c) { add(Verb::CopySend, -1, to, c); }
  void sendOut(int to, Chunk c) { add(Verb::SendOut, -1, to, c); }
  void recv(int from, Chunk c) { add(Verb::Recv, from, -1, c); }
  void recvCopySend(int from, int to, Chunk c) { add(Verb::RecvCopySend, from, to, c); }
  void recvReduceSend(int from, int to, Chunk c) { add(Verb::RecvReduceSend, from, to, c); }
  void recvReduceCopy(int from, Chunk c) { add(Verb::RecvReduceCopy, from, -1, c); }
  void recvReduceCopySend(int from, int to, Chunk c) { add(Verb::RecvReduceCopySend, from, to, c); }
  void copy(Chunk c) { add(Verb::Copy, -1, -1, c); }
  void copyFinish(Chunk c) { add(Verb::CopyFinish, -1, -1, c); }
  void sendAll(Chunk c) { add(Verb::SendAll, -1, -1, c); }
  void sendOutAll(Chunk c) { add(Verb::SendOutAll, -1, -1, c); }
  void recvReduceAll(Chunk c) { add(Verb::RecvReduceAll, -1, -1, c); }
  void hold(int from, Chunk c) { add(Verb::Hold, from, -1, c); }
  void holdIn(Chunk c) { add(Verb::HoldIn, -1, -1, c); }
  void holdOut(Chunk c) { add(Verb::HoldOut, -1, -1, c); }
  void sumSend(int to, Chunk c) { add(Verb::SumSend, -1, to, c); }
  void sumKeep(Chunk c) { add(Verb::SumKeep, -1, -1, c); }
  void sumCopy(Chunk c) { add(Verb::SumCopy, -1, -1, c); }

  std::vector<Step> takeSteps() { return std::move(steps_); }

 private:
  void add(Verb verb, int from, int to, Chunk chunk) { steps_.push_back({verb, from, to, chunk}); }

  int rank_;
  int size_;
  std::vector<Step> steps_;
};

static_assert(SumPort<RecordingPort>);

// One call of a collective, as all its ranks see it.
struct Operation {
  CollectiveKind collective;
  int ranks;
  int root;           // broadcast and reduce; otherwise 0
  Blocks blocks;      // starts, if any, must outlive the operation
  size_t chunkCount;  // elements of a block in one round, at least 1
  Grouping nodes{};   // without ranks: every rank on a node of its own; its table must outlive the operation
  int ahead = 0;      // rounds that earlier stages run ahead (pipeline.h)

  size_t rounds() const;  // at least 1: an empty operation still sends its empty messages
  Grouping grouping() const { return nodes.ranks != 0 ? nodes : Grouping::apart(ranks); }
};

// One stage of one round, as an algorithm's function for the recording port gets it: it ignores what it has
// not. Not a Round: mutants have a type of their own for that.
struct RecordedCall {
  const Blocks& blocks;
  size_t begin;
  size_t chunkCount;
  int root;
  const Grouping& nodes;
  int stage;
};
using RecordedAlgorithm = void (*)(RecordingPort& port, const RecordedCall& call);

struct Program {
  Operation operation;
  std::vector<std::vector<Step>> ranks;
};

// The function of each algorithm.
RecordedAlgorithm recordedAlgorithm(AlgorithmId algorithm);

// stages: of a round.
Program recordProgram(const Operation& operation, RecordedAlgorithm run, int stages = 1);

}  // namespace peal::record

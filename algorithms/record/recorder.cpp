#include "algorithms/record/recorder.h"

#include <fmt/format.h>

#include <algorithm>

#include "algorithms/direct.h"
#include "algorithms/hierarchical_ring.h"
#include "algorithms/pipeline.h"
#include "algorithms/ring.h"
#include "algorithms/tree.h"

namespace peal::record {
namespace {

struct VerbRow {
  const char* name;
  unsigned parts;
};

// In the order of Verb.
constexpr VerbRow kVerbs[] = {
    {"send", kUsesIn | kToOne},
    {"copySend", kUsesIn | kKeeps | kToOne},
    {"sendOut", kUsesOut | kToOne},
    {"recv", kFromOne | kKeeps},
    {"recvCopySend", kFromOne | kKeeps | kToOne},
    {"recvReduceSend", kFromOne | kUsesIn | kToOne},
    {"recvReduceCopy", kFromOne | kUsesIn | kKeeps | kFinishes},
    {"recvReduceCopySend", kFromOne | kUsesIn | kKeeps | kFinishes | kToOne},
    {"copy", kUsesIn | kKeeps},
    {"copyFinish", kUsesIn | kKeeps | kFinishes},
    {"sendAll", kUsesIn | kToAll},
    {"sendOutAll", kUsesOut | kToAll},
    {"recvReduceAll", kFromAll | kUsesIn | kKeeps | kFinishes},
    {"hold", kFromOne | kHolds},
    {"holdIn", kUsesIn | kHolds},
    {"holdOut", kUsesOut | kHolds},
    {"sumSend", kSums | kToOne},
    {"sumKeep", kSums | kKeeps | kPartial},
    {"sumCopy", kSums | kKeeps | kFinishes},
};

Round roundOf(const RecordedCall& call) { return {call.blocks, call.begin, call.chunkCount}; }

template <void (*kRun)(RecordingPort&, Round)>
void rootless(RecordingPort& port, const RecordedCall& call) {
  kRun(port, roundOf(call));
}

template <void (*kRun)(RecordingPort&, Round, int)>
void rooted(RecordingPort& port, const RecordedCall& call) {
  kRun(port, roundOf(call), call.root);
}

template <void (*kRun)(RecordingPort&, Round, const Grouping&)>
void onNodes(RecordingPort& port, const RecordedCall& call) {
  kRun(port, roundOf(call), call.nodes);
}

template <void (*kRun)(RecordingPort&, Round, const Grouping&, int)>
void staged(RecordingPort& port, const RecordedCall& call) {
  kRun(port, roundOf(call), call.nodes, call.stage);
}

template <void (*kRun)(RecordingPort&, Round, int)>
void flatStaged(RecordingPort& port, const RecordedCall& call) {
  kRun(port, roundOf(call), call.stage);
}

template <void (*kRun)(RecordingPort&, Round, int, const Grouping&)>
void rootedOnNodes(RecordingPort& port, const RecordedCall& call) {
  kRun(port, roundOf(call), call.root, call.nodes);
}

}  // namespace

unsigned parts(Verb verb) { return kVerbs[static_cast<int>(verb)].parts; }
const char* verbName(Verb verb) { return kVerbs[static_cast<int>(verb)].name; }

std::string text(const Step& step) {
  std::string peers;
  if (step.from >= 0) {
    peers += fmt::format("from {}, ", step.from);
  }
  if (step.to >= 0) {
    peers += fmt::format("to {}, ", step.to);
  }
  return fmt::format("{}({}[{},{}))", verbName(step.verb), peers, step.chunk.offset,
                     step.chunk.offset + step.chunk.count);
}

size_t Operation::rounds() const {
  const size_t needed = (blocks.longest() + chunkCount - 1) / chunkCount;
  return std::max<size_t>(needed, 1);
}

RecordedAlgorithm recordedAlgorithm(AlgorithmId algorithm) {
  // In the order of AlgorithmId.
  static constexpr RecordedAlgorithm kAlgorithms[kAlgorithmCount] = {
      rootless<ringAllReduce>,
      rootless<ringReduceScatter>,
      rootless<ringAllGather>,
      rooted<ringBroadcast>,
      rooted<ringReduce>,
      rootless<oneShotAllReduce>,
      rootless<twoShotAllReduce>,
      rootless<directReduceScatter>,
      rootless<directAllGather>,
      rooted<directBroadcast>,
      rooted<directReduce>,
      staged<hierarchicalAllReduce>,
      staged<hierarchicalReduceScatter>,
      staged<hierarchicalAllGather>,
      rootedOnNodes<hierarchicalBroadcast>,
      rootedOnNodes<hierarchicalReduce>,
      onNodes<doublingAllReduce>,
      rootedOnNodes<treeBroadcast>,
      rootedOnNodes<treeReduce>,
      flatStaged<stagedTwoShot>,
      onNodes<hierarchicalRingAllReduce>,
      onNodes<hierarchicalRingReduceScatter>,
      onNodes<hierarchicalRingAllGather>,
  };
  return kAlgorithms[static_cast<int>(algorithm)];
}

Program recordProgram(const Operation& operation, RecordedAlgorithm run, int stages) {
  Program program{operation, {}};
  const Grouping nodes = operation.grouping();
  for (int rank = 0; rank < operation.ranks; ++rank) {
    RecordingPort port(rank, operation.ranks);
    runStages(operation.rounds(), stages, operation.ahead, [&](int stage, size_t round) {
      run(port, {operation.blocks, round * operation.chunkCount, operation.chunkCount, operation.root, nodes,
                 stage});
    });
    program.ranks.push_back(port.takeSteps());
  }
  return program;
}

}  // namespace peal::record

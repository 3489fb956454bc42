#include "algorithms/record/recorder.h"

#include <fmt/format.h>

#include <algorithm>

#include "algorithms/direct.h"
#include "algorithms/ring.h"

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
};

template <void (*kRun)(RecordingPort&, Round)>
void rootless(RecordingPort& port, const Blocks& blocks, size_t begin, size_t chunkCount, int) {
  kRun(port, Round{blocks, begin, chunkCount});
}

template <void (*kRun)(RecordingPort&, Round, int)>
void rooted(RecordingPort& port, const Blocks& blocks, size_t begin, size_t chunkCount, int root) {
  kRun(port, Round{blocks, begin, chunkCount}, root);
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
  // In the order of Algorithm.
  static constexpr RecordedAlgorithm kAlgorithms[kAlgorithmCount] = {
      rootless<ringAllReduce>,    rootless<ringReduceScatter>,
      rootless<ringAllGather>,    rooted<ringBroadcast>,
      rooted<ringReduce>,         rootless<oneShotAllReduce>,
      rootless<twoShotAllReduce>, rootless<directReduceScatter>,
      rootless<directAllGather>,  rooted<directBroadcast>,
      rooted<directReduce>,
  };
  return kAlgorithms[static_cast<int>(algorithm)];
}

Program recordProgram(const Operation& operation, RecordedAlgorithm run) {
  Program program{operation, {}};
  for (int rank = 0; rank < operation.ranks; ++rank) {
    RecordingPort port(rank, operation.ranks);
    for (size_t round = 0; round < operation.rounds(); ++round) {
      run(port, operation.blocks, round * operation.chunkCount, operation.chunkCount, operation.root);
    }
    program.ranks.push_back(port.takeSteps());
  }
  return program;
}

}  // namespace peal::record

// The kernels of collectives: each block is a channel and runs its share of the rounds. Included by the
// collective_*.cu files, one for each protocol, so that they compile side by side. One kernel reduces all
// types: all but the innermost loops is the same for them.
#pragma once
#include <cstddef>

#include "lib/executor/cuda/device_port.cuh"
#include "lib/executor/cuda/levels.cuh"
#include "lib/executor/selection.h"

namespace peal::cuda {

// A call, so that what leads to an algorithm takes no registers while it runs.
template <class P>
PEAL_DEVICE_CALL void playRound(P& port, const CollectiveArgs& args, const Round& round) {
  runRound(port, args.kind, args.algorithm, args.root, round);
}

// Which algorithms a kernel has.
enum class Play : uint8_t { Flat, Levels, Both };

// False after a fault.
template <class Element, Protocol kProtocol, class Epilogue = NoEpilogue, Play kPlay = Play::Flat>
PEAL_DEVICE bool runCollective(const CollectiveArgs& args, const Epilogue& epilogue = {}) {
  static_assert(Port<DevicePort<Element, kProtocol, Epilogue>>);
  PEAL_SHARED(PortState, state);
  DevicePort<Element, kProtocol, Epilogue> port(args, state, epilogue);
  port.begin({args.total, args.parts, args.hasStarts != 0 ? args.starts : nullptr});
  const Blocks blocks{args.total, args.parts, state.starts};
  const size_t stride = gridBlocks() * args.chunkCount;
  Round round{blocks, blockIndex() * args.chunkCount, args.chunkCount};
  if (kPlay == Play::Levels || (kPlay == Play::Both && knowsNodes(args.algorithm))) {
    if constexpr (kPlay != Play::Flat) {
      playStages(port, args, round, stride);
    }
  } else {
    const size_t longest = blocks.longest();
    // Also once for an empty array: its digest is compared too.
    PEAL_KEEP_LOOP
    for (; round.begin < longest || round.begin == 0; round.begin += stride) {
      playRound(port, args, round);
    }
  }
  port.end();
  return !port.failed();
}

}  // namespace peal::cuda

// Defines the two kernels of a protocol; kernels.cpp lists their names.
#define PEAL_COLLECTIVE_KERNELS(protocol)                                                             \
  namespace peal::cuda {                                                                              \
  PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) reduce##protocol(PEAL_GRID_CONSTANT CollectiveArgs args) { \
    runCollective<AnyElement, Protocol::protocol>(args);                                              \
  }                                                                                                   \
  PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) copy##protocol(PEAL_GRID_CONSTANT CollectiveArgs args) {   \
    runCollective<CopiedElement, Protocol::protocol>(args);                                           \
  }                                                                                                   \
  }

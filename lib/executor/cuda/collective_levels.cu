// The kernel of the algorithms that know nodes: all collectives and types. Its calls lie deeper than those of
// the others, so it takes more registers and fewer threads; networks and small messages, which these
// algorithms are for, want no more.
#include "lib/executor/cuda/collective.cuh"
#include "lib/executor/cuda/kernels.h"

namespace peal::cuda {

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(kMostLevelsThreads) levels(PEAL_GRID_CONSTANT CollectiveArgs args) {
  runCollective<AnyElement, Protocol::Simple, NoEpilogue, Play::Levels>(args);
}

}  // namespace peal::cuda

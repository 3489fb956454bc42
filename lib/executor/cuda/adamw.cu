// One AdamW update of a flat shard, in one launch. The grid strides over the shard, so that neighbouring
// threads touch neighbouring memory.
#include "lib/executor/cuda/adamw.cuh"
#include "lib/executor/cuda/kernels.h"

namespace peal::cuda {
namespace {

// 64-bit indices, eight elements for each thread of the grid in turn.
PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(kMostThreads) adamwStepKernel(AdamwStepArgs args) {
  PEAL_SHARED(AdamwStepView, view);
  readAdamwControl(args.state, view);
  syncBlock();
  if (!view.skip) {
    adamwRange(args.state, view, {args.gradient, args.weight, 0, args.state.count},
               uint64_t{blockIndex()} * blockThreads() + threadIndex(),
               uint64_t{gridBlocks()} * blockThreads());
  }
  finishAdamwStep(args.state, view);
}

}  // namespace

AdamwKernel adamwKernel() { return adamwStepKernel; }

}  // namespace peal::cuda

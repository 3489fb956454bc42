// The optimizer's kernels: AdamW over a flat shard in one launch, and the all-reduce that has it as its
// pivot.
#include "lib/executor/cuda/adamw.cuh"
#include "lib/executor/cuda/kernels.h"

namespace peal::cuda {

// 64-bit indices. The grid strides over the shard, so that neighbouring threads touch neighbouring memory.
PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) adamwStep(PEAL_GRID_CONSTANT AdamwStepArgs args) {
  PEAL_SHARED(AdamwStepView, view);
  readAdamwControl(args.state, view);
  syncBlock();
  if (!view.skip) {
    adamwRange(args.state, view, {args.gradient, args.weight, 0, args.state.count, nullptr},
               uint64_t{blockIndex()} * blockThreads() + threadIndex(),
               uint64_t{gridBlocks()} * blockThreads());
  }
  finishAdamwStep(args.state, view);
}

}  // namespace peal::cuda

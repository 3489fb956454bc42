// The optimizer's kernels: AdamW over a flat shard in one launch, and the all-reduce that has it as its
// pivot.
#include "lib/executor/cuda/adamw.cuh"
#include "lib/executor/cuda/collective.cuh"
#include "lib/executor/cuda/kernels.h"

namespace peal::cuda {

// 64-bit indices. The grid strides over the shard, so that neighbouring threads touch neighbouring memory.
PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) adamwStep(PEAL_GRID_CONSTANT AdamwStepArgs args) {
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

// The reduced gradients of a chunk become weights, in place.
struct AdamwEpilogue {
  static constexpr bool kActive = true;
  const pealAdamw_t& state;
  const AdamwStepView& view;
  size_t shardStart;  // element of the array where this rank's shard begins

  PEAL_DEVICE void operator()(std::byte* chunk, Chunk c) const {
    auto* values = reinterpret_cast<uint16_t*>(chunk);
    adamwRange(state, view, {values, values, c.offset - shardStart, c.count}, threadIndex(), blockThreads());
  }
};

// All ranks skip, or none: so a skipped step sends nothing.
PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) reduceAdamwGather(PEAL_GRID_CONSTANT ReduceAdamwGatherArgs args) {
  PEAL_SHARED(AdamwStepView, view);
  readAdamwControl(args.state, view);
  syncBlock();
  if (view.skip) {
    return;
  }
  const AdamwEpilogue epilogue{args.state, view, args.collective.starts[args.collective.comm.rank]};
  if (runCollective<Bfloat16, Protocol::Simple>(args.collective, epilogue)) {
    finishAdamwStep(args.state, view);
  }
}

}  // namespace peal::cuda

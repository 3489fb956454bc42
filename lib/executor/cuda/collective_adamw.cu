// The kernel of the fused optimizer step: an all-reduce that has AdamW at its pivot (docs/DESIGN.md, D5).
#include "lib/executor/cuda/adamw.cuh"
#include "lib/executor/cuda/collective.cuh"
#include "lib/executor/cuda/kernels.h"

namespace peal::cuda {

// The reduced gradients of a chunk become weights, in place.
struct AdamwEpilogue {
  static constexpr bool kActive = true;
  const pealAdamw_t& state;
  const AdamwStepView& view;
  size_t shardStart;  // element of the array where this rank's shard begins

  PEAL_DEVICE_CALL void operator()(std::byte* chunk, Chunk c) const {
    auto* values = reinterpret_cast<uint16_t*>(chunk);
    const uint64_t begin = c.offset - shardStart;
    auto* reduced = static_cast<uint16_t*>(state.reduced);
    adamwRange(state, view, {values, values, begin, c.count, reduced == nullptr ? nullptr : reduced + begin},
               threadIndex(), blockThreads());
  }
};

// All ranks skip, or none: so a skipped step sends nothing.
PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(kMostFusedThreads)
    reduceAdamwGather(PEAL_GRID_CONSTANT ReduceAdamwGatherArgs args) {
  PEAL_SHARED(AdamwStepView, view);
  readAdamwControl(args.state, view);
  syncBlock();
  if (view.skip) {
    return;
  }
  const AdamwEpilogue epilogue{args.state, view, args.collective.starts[args.collective.comm.rank]};
  if (runCollective<Bfloat16, Protocol::Simple, AdamwEpilogue, Play::Both>(args.collective, epilogue)) {
    finishAdamwStep(args.state, view);
  }
}

}  // namespace peal::cuda

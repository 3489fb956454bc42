// The kernels as host code finds them: by operation and protocol, for cudaLaunchKernel. Called by
// the executor (lib/executor/cuda/) and by the kernels' tests.
//
// A launch has one block for each channel, a multiple of 32 threads from 64 to kMostThreads in each, no
// dynamic shared memory, and all its blocks must be resident at once: they wait for each other's peers. All
// ranks launch the same operation with the same number of blocks, chunkCount and protocol, in the same order;
// numbers of threads may differ.
#pragma once
#include "lib/executor/cuda/view.h"
#include "peal/adamw.h"
#include "peal/peal.h"

namespace peal::cuda {

constexpr int kMostThreads = 512;
constexpr int kMostFusedThreads = 256;   // of reduceAdamwGatherKernel, which needs more registers
constexpr int kMostLevelsThreads = 256;  // likewise, of collectives by algorithms that know nodes

using CollectiveKernel = void (*)(CollectiveArgs);
using PointToPointKernel = void (*)(PointToPointArgs);

// One AdamW update of a flat shard of bf16 gradients and weights.
struct AdamwStepArgs {
  pealAdamw_t state;
  const uint16_t* gradient;
  uint16_t* weight;
};
using AdamwKernel = void (*)(AdamwStepArgs);

// The fused step: an all-reduce of bf16 gradients, with one block per rank (hasStarts), ring, two-shot or
// hierarchical, that keeps and sends updated weights instead of sums.
struct ReduceAdamwGatherArgs {
  CollectiveArgs collective;
  pealAdamw_t state;
};
static_assert(sizeof(ReduceAdamwGatherArgs) <= 4096);
using ReduceAdamwGatherKernel = void (*)(ReduceAdamwGatherArgs);

// kind: pealStatAllReduce ... One kernel serves all data types: digest.type says of which elements the
// arguments count.
CollectiveKernel collectiveKernelFor(int kind, Protocol protocol);
// The same of the algorithms that know nodes, for Protocol::Simple.
CollectiveKernel levelsKernel();
// Block b of C moves every slice s of every transfer with s % C == b; slices are payloadBytes(Simple) long.
// The ranks of a communicator use the same C in every launch.
PointToPointKernel pointToPointKernel();
// Any number of blocks, which need not be resident together.
AdamwKernel adamwKernel();
// As a collective of Protocol::Simple.
ReduceAdamwGatherKernel reduceAdamwGatherKernel();

}  // namespace peal::cuda

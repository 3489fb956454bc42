// What an engine does, kind by kind, and a function that is called before each: with it tests delay one kind
// of operation on one rank, and hold it back, to see that no buffer is used before an earlier operation is
// done with it. Nothing else sets one.
#pragma once

namespace peal::zero {

enum class Operation {
  AllReduce,      // of gradients
  ReduceScatter,  // of gradients; with several shard groups the exchange that stands for it
  Gather,         // of weights
  Replicas,       // a send, a receive or a broadcast between shard groups
  Control,        // the step's small all-reduce
  Other,          // agreement, reading, checkpoints
  Sum,     // a pass over gradients on the stream: sums over micro-batches and over shard groups, copies
  Update,  // AdamW of a bucket
  Fused,   // reduction, AdamW and gathering of a bucket as one
};
inline constexpr int kOperations = 9;

// On the thread that is about to run the operation: the stream's worker, or the caller's.
using BeforeOperation = void (*)(void* user, Operation operation);

}  // namespace peal::zero

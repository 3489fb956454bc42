// Whether a run fits into this machine, asked before anything is allocated, and what it took in the end.
#pragma once
#include "tools/train/options.h"

namespace peal::train {

// Bytes of one of `size` ranks: the stage's model states, the first values on rank 0, and the model's
// workspace.
double rankBytes(const TrainOptions& options, const ModelShape& shape, int size);

// Host memory, where the options compute there: throws UsageError if localSize of `size` ranks need more than
// this machine's memory. A run that does not fit would not fail but drive the machine into swapping.
void checkMemory(const TrainOptions& options, const ModelShape& shape, int size, int localSize);
// The same of a GPU and of one rank, in the rank's own process.
void checkDeviceMemory(const TrainOptions& options, const ModelShape& shape, int size, int device);

// Memory of this process that is resident, as the kernel counts it: now, and at most since it began.
struct ResidentMemory {
  uint64_t nowBytes, peakBytes;
};
ResidentMemory residentMemory();

}  // namespace peal::train

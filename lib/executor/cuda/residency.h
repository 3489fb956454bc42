// How many blocks of the collectives' kernels fit on a device at once. Blocks wait for the blocks of other
// ranks, so all of a launch must be resident. Called when a communicator is made.
#pragma once
#include "lib/base/result.h"

namespace peal::cuda {

struct Residency {
  int processors = 0;          // of the device
  int blocksPerProcessor = 0;  // of the kernel that fits worst
};

// Asks for every kernel, which also loads it: a kernel that is loaded only at its first launch may wait for
// running ones, and these may wait for it. Remembered by device and threads.
Result<Residency> residencyOn(int device, int threads);

}  // namespace peal::cuda

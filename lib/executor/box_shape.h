// How large the boxes of a GPU communicator are (lib/executor/cuda/view.h). Built without CUDA too: what the
// tuner would choose is explained on machines without it.
#pragma once
#include <cstddef>

#include "lib/base/result.h"
#include "lib/executor/cuda/view.h"

namespace peal::cuda {

// The shape for so many channels at most; fewer, and then smaller slots, where a window of `ranks` boxes
// would exceed bufferBytes. An error if the smallest ones do. slotBytes: of a message's payload; 0: as large
// as fits.
Result<BoxShape> shapeFor(int ranks, int channels, int slots, size_t slotBytes, size_t bufferBytes);
// As the knobs say it.
Result<BoxShape> configuredShape(int ranks, int channels);

}  // namespace peal::cuda

// What links between GPUs are taken to cost where no file says it (links.h), and what they cost a protocol.
// None of it is measured by peal: no GPU has run it.
#pragma once
#include <cstddef>

#include "algorithms/choice.h"
#include "lib/base/gpu_path.h"
#include "lib/tuner/links.h"

namespace peal {

// From published figures of other software and of hardware (device_costs.cpp names them).
GpuCost assumedGpuCost(GpuPath path);
// `said`, and the path's where it says nothing.
GpuCost gpuCostOn(GpuPath path, GpuCost said);

// Bytes on the link for one of payload: LL sends a flag of 4 bytes with 4 of data, LL128 one of 8 with 120.
double wireFactor(Protocol protocol);

// links as Prediction wants them, for messages of a protocol that `channels` blocks move, each as fast as
// `blockSpeed` says (1: a whole one). links.gpu must be complete. Between nodes a message passes this rank's
// and its peer's host memory besides what was measured.
LinkTable linksFor(const LinkTable& links, Protocol protocol, int channels, double blockSpeed);

}  // namespace peal

// From a call to the arguments of its kernel. Pure: no CUDA call, no state. Called by executor.cpp.
#pragma once
#include <vector>

#include "algorithms/grouping.h"
#include "lib/executor/cuda/view.h"
#include "lib/executor/host/operation.h"
#include "transports/device_memory.h"

namespace peal::cuda {

// Extents of a collective's buffers on a rank, in bytes.
struct Extents {
  size_t send = 0, recv = 0;
};
Extents extentsOf(const Collective& call, int rank, int size);

// deferredScalar: where the kernel reads a pre-multiplied sum's scalar, or nullptr.
CollectiveArgs argumentsOf(const CommView& view, const Collective& call, const void* deferredScalar,
                           DeviceMemory& memory);
// At most kMostTransfers calls.
PointToPointArgs argumentsOf(const CommView& view, const std::vector<PointToPoint>& calls,
                             DeviceMemory& memory);

// What a call adds to the statistics; exact, from the algorithms' closed formulas.
// nodes: where ranks lie.
void count(pealCommStats_t& stats, const CommView& view, const Grouping& nodes, const Collective& call);
void count(pealCommStats_t& stats, const CommView& view, const PointToPoint& call);

}  // namespace peal::cuda

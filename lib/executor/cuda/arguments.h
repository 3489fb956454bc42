// Whether the streams and buffers of a call are what a communicator on a GPU can use. Each error says what
// was found instead and what to do. Called for every call, with the communicator's device current.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <string>

#include "lib/base/result.h"
#include "lib/executor/cuda/order.h"
#include "peal/adamw.h"

namespace peal::cuda {

// The stream belongs to the device, and is not in a capture that is already lost.
Result<StreamState> stateOf(const std::string& name, int device, cudaStream_t stream);

// [data, data + bytes) is memory of the device, inside one allocation. `what`: the argument's name.
Result<void> checkBuffer(const std::string& name, int device, const char* what, const void* data,
                         size_t bytes);

// The optimizer's state of a shard: its arrays and segments are memory of the device, its control block too
// or pinned host memory.
Result<void> checkAdamw(const std::string& name, int device, const pealAdamw_t& state);

// A scalar that a kernel reads in one access: memory of the device, at a multiple of its size.
Result<void> checkScalar(const std::string& name, int device, const void* scalar, size_t bytes);

}  // namespace peal::cuda

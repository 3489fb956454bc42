// Allocation, pinning and what an address is.
#include <cstdint>

#include "tests/cudasim/core/memory.h"
#include "tests/cudasim/runtime/api.h"

using namespace peal::cudasim;

namespace {

constexpr unsigned kHostAllocFlags = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
constexpr unsigned kHostRegisterFlags =
    cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;

// Freeing waits for everything that runs on the device, on a GPU too.
void awaitDevice(Lock& lock, int device) {
  Engine& engine = runtime().engine;
  engine.await(lock, engine.pendingOnDevice(lock, device));
}

// Both kinds of freeing: the range may only be looked up again once the device is idle.
cudaError_t freeRange(Lock& lock, void* data, RangeKind kind) {
  const Range* range = runtime().memory.startingAt(data);
  if (range == nullptr || range->kind != kind) {
    return cudaErrorInvalidValue;
  }
  awaitDevice(lock, range->device);
  Range* idle = runtime().memory.startingAt(data);
  if (idle == nullptr) {
    return cudaErrorInvalidValue;  // somebody else freed it meanwhile
  }
  runtime().memory.remove(lock, idle);
  return cudaSuccess;
}

cudaError_t hostAlloc(void** pHost, size_t size, unsigned flags, Lock& lock) {
  if (pHost == nullptr || (flags & ~kHostAllocFlags) != 0) {
    return cudaErrorInvalidValue;
  }
  if (size == 0) {
    *pHost = nullptr;
    return cudaSuccess;
  }
  const Range* range = runtime().memory.allocatePinned(lock, currentDevice(), size, flags);
  if (range == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  *pHost = reinterpret_cast<void*>(range->base);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void** devPtr, size_t size) {
  const Function function{"cudaMalloc", cudaErrorMemoryAllocation, true};
  return call(function, [&](Lock& lock) {
    if (devPtr == nullptr) {
      return cudaErrorInvalidValue;
    }
    *devPtr = nullptr;
    if (size == 0) {
      return cudaSuccess;
    }
    const Range* range = runtime().memory.allocate(lock, currentDevice(), size);
    if (range == nullptr) {
      return cudaErrorMemoryAllocation;
    }
    *devPtr = reinterpret_cast<void*>(range->base);
    return cudaSuccess;
  });
}

cudaError_t cudaFree(void* devPtr) {
  const Function function{
      .name = "cudaFree", .usualError = cudaErrorUnknown, .unsafeInCapture = true, .releases = true};
  return call(function, [&](Lock& lock) {
    return devPtr == nullptr ? cudaSuccess : freeRange(lock, devPtr, RangeKind::Device);
  });
}

cudaError_t cudaHostAlloc(void** pHost, size_t size, unsigned int flags) {
  const Function function{"cudaHostAlloc", cudaErrorMemoryAllocation, true};
  return call(function, [&](Lock& lock) { return hostAlloc(pHost, size, flags, lock); });
}

cudaError_t cudaMallocHost(void** ptr, size_t size) {
  const Function function{"cudaMallocHost", cudaErrorMemoryAllocation, true};
  return call(function, [&](Lock& lock) { return hostAlloc(ptr, size, cudaHostAllocDefault, lock); });
}

cudaError_t cudaFreeHost(void* ptr) {
  const Function function{
      .name = "cudaFreeHost", .usualError = cudaErrorUnknown, .unsafeInCapture = true, .releases = true};
  return call(function, [&](Lock& lock) {
    return ptr == nullptr ? cudaSuccess : freeRange(lock, ptr, RangeKind::Pinned);
  });
}

cudaError_t cudaHostRegister(void* ptr, size_t size, unsigned int flags) {
  const Function function{"cudaHostRegister", cudaErrorMemoryAllocation, true};
  return call(function, [&](Lock& lock) {
    if (ptr == nullptr || size == 0 || isTagged(ptr) || (flags & ~kHostRegisterFlags) != 0) {
      return cudaErrorInvalidValue;
    }
    if (runtime().memory.overlapping(ptr, size) != nullptr) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
    runtime().memory.addRegistered(lock, currentDevice(), ptr, size, flags);
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* ptr) {
  const Function function{.name = "cudaHostUnregister",
                          .usualError = cudaErrorUnknown,
                          .unsafeInCapture = true,
                          .releases = true};
  return call(function, [&](Lock& lock) {
    if (ptr == nullptr) {
      return cudaErrorInvalidValue;
    }
    const cudaError_t error = freeRange(lock, ptr, RangeKind::Registered);
    return error == cudaSuccess ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaHostGetDevicePointer(void** pDevice, void* pHost, unsigned int flags) {
  const Function function{"cudaHostGetDevicePointer", cudaErrorInvalidValue};
  return call(function, [&](Lock&) {
    const Range* range = runtime().memory.holding(pHost);
    if (pDevice == nullptr || flags != 0 || range == nullptr || range->isOnDevice()) {
      return cudaErrorInvalidValue;
    }
    *pDevice = pHost;  // unified addressing
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetFlags(unsigned int* pFlags, void* pHost) {
  const Function function{"cudaHostGetFlags", cudaErrorInvalidValue};
  return call(function, [&](Lock&) {
    const Range* range = runtime().memory.holding(pHost);
    if (pFlags == nullptr || range == nullptr || range->isOnDevice()) {
      return cudaErrorInvalidValue;
    }
    *pFlags = range->flags | cudaHostAllocMapped;  // unified addressing maps all of it
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
  const Function function{"cudaPointerGetAttributes", cudaErrorInvalidValue};
  return call(function, [&](Lock&) {
    if (attributes == nullptr) {
      return cudaErrorInvalidValue;
    }
    *attributes = {};
    const Range* range = runtime().memory.holding(ptr);
    void* const address = const_cast<void*>(ptr);
    if (range == nullptr) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = cudaInvalidDeviceId;
      attributes->hostPointer = address;
    } else {
      attributes->type = range->isOnDevice() ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
      attributes->device = range->device;
      attributes->devicePointer = address;
      attributes->hostPointer = range->isOnDevice() ? nullptr : address;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Function function{"cudaMemGetInfo", cudaErrorUnknown};
  return call(function, [&](Lock&) {
    if (free == nullptr || total == nullptr) {
      return cudaErrorInvalidValue;
    }
    *total = runtime().machine.memoryBytes;
    *free = *total - runtime().memory.allocatedBytes(currentDevice());
    return cudaSuccess;
  });
}

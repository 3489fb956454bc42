// Copies and fills, with the waits of the host that CUDA documents ("API synchronization behavior").
#include <cstring>
#include <optional>

#include "tests/cudasim/core/memory.h"
#include "tests/cudasim/runtime/api.h"
#include "tests/cudasim/runtime/capture.h"
#include "tests/cudasim/runtime/kernels.h"

namespace peal::cudasim {
namespace {

// Device memory has to lie inside one allocation; host memory is the caller's affair.
bool isReachable(const void* data, size_t bytes) {
  if (!isTagged(data)) {
    return true;
  }
  const Range* range = runtime().memory.holding(data);
  return range != nullptr && reinterpret_cast<uintptr_t>(data) + bytes <= range->base + range->bytes;
}

bool isPageable(const void* data) { return !isTagged(data) && runtime().memory.holding(data) == nullptr; }

bool suits(cudaMemcpyKind kind, const void* dst, const void* src) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !isTagged(dst) && !isTagged(src);
    case cudaMemcpyHostToDevice:
      return isTagged(dst) && !isTagged(src);
    case cudaMemcpyDeviceToHost:
      return !isTagged(dst) && isTagged(src);
    case cudaMemcpyDeviceToDevice:
      return !isPageable(dst) && !isPageable(src);
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

// When the operation runs; memory may have been freed since it was issued.
bool stillReachable(int device, const void* data, size_t bytes) {
  {
    const Lock lock(runtime().mutex);
    if (isReachable(data, bytes)) {
      return true;
    }
  }
  loseDevice(device, cudaErrorIllegalAddress, "a copy or fill of device memory that was freed meanwhile");
  return false;
}

Work copyWork(int device, void* dst, const void* src, size_t bytes) {
  Work work;
  work.type = cudaGraphNodeTypeMemcpy;
  work.device = device;
  work.run = [=] {
    if (stillReachable(device, dst, bytes) && stillReachable(device, src, bytes)) {
      std::memcpy(toHost(dst), toHost(src), bytes);
    }
  };
  return work;
}

enum class HostWaits { AsDocumented, Always };

cudaError_t copy(Lock& lock, void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t handle, HostWaits waits) {
  const StreamRef stream = runtime().engine.find(lock, handle, currentDevice());
  if (!stream) {
    return cudaErrorInvalidResourceHandle;
  }
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
    return cudaErrorInvalidMemcpyDirection;
  }
  if (bytes == 0) {
    return cudaSuccess;
  }
  if (dst == nullptr || src == nullptr || !suits(kind, dst, src) || !isReachable(dst, bytes) ||
      !isReachable(src, bytes)) {
    return cudaErrorInvalidValue;
  }
  // From pageable memory the driver has copied before the call returns; to it, the call waits for the copy.
  std::shared_ptr<std::vector<std::byte>> staged;
  if (!stream->capture && waits == HostWaits::AsDocumented && isPageable(src)) {
    const auto* data = static_cast<const std::byte*>(src);
    staged = std::make_shared<std::vector<std::byte>>(data, data + bytes);
    src = staged->data();
  }
  Work work = copyWork(stream->device, dst, src, bytes);
  if (staged) {
    work.run = [staged, run = std::move(work.run)] { run(); };
  }
  CompletionRef done;
  if (const cudaError_t error = issue(lock, stream, std::move(work), &done); error != cudaSuccess) {
    return error;
  }
  if (done && (waits == HostWaits::Always || isPageable(dst))) {
    runtime().engine.await(lock, {done});
  }
  return runtime().lostOr(stream->device, cudaSuccess);
}

// The legacy stream's calls first meet what forbids the legacy stream, then what forbids waiting at all.
cudaError_t refuseSynchronous(Lock& lock) {
  const StreamRef legacy = runtime().engine.legacy(lock, currentDevice());
  if (const cudaError_t error = refuseUse(lock, legacy); error != cudaSuccess) {
    return error;
  }
  return invalidateForUnsafeCall(lock) ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t copySynchronously(Lock& lock, void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = refuseSynchronous(lock); error != cudaSuccess) {
    return error;
  }
  // Between devices the host does not wait.
  const bool onDevices = isTagged(dst) && isTagged(src);
  return copy(lock, dst, src, bytes, kind, cudaStreamLegacy,
              onDevices ? HostWaits::AsDocumented : HostWaits::Always);
}

cudaError_t fill(Lock& lock, void* data, int value, size_t bytes, cudaStream_t handle) {
  const StreamRef stream = runtime().engine.find(lock, handle, currentDevice());
  if (!stream) {
    return cudaErrorInvalidResourceHandle;
  }
  if (bytes == 0) {
    return cudaSuccess;
  }
  if (isPageable(data) || !isReachable(data, bytes)) {
    return cudaErrorInvalidValue;
  }
  Work work;
  work.type = cudaGraphNodeTypeMemset;
  work.device = stream->device;
  work.run = [=, device = stream->device] {
    if (stillReachable(device, data, bytes)) {
      std::memset(toHost(data), value, bytes);
    }
  };
  return issue(lock, stream, std::move(work));
}

bool areDevices(int dstDevice, int srcDevice) {
  return runtime().isDevice(dstDevice) && runtime().isDevice(srcDevice);
}

}  // namespace
}  // namespace peal::cudasim

using namespace peal::cudasim;

cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  return call({"cudaMemcpy", cudaErrorUnknown},
              [&](Lock& lock) { return copySynchronously(lock, dst, src, count, kind); });
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call({"cudaMemcpyAsync", cudaErrorUnknown},
              [&](Lock& lock) { return copy(lock, dst, src, count, kind, stream, HostWaits::AsDocumented); });
}

cudaError_t cudaMemcpyPeer(void* dst, int dstDevice, const void* src, int srcDevice, size_t count) {
  return call({"cudaMemcpyPeer", cudaErrorUnknown}, [&](Lock& lock) {
    return areDevices(dstDevice, srcDevice)
               ? copySynchronously(lock, dst, src, count, cudaMemcpyDeviceToDevice)
               : cudaErrorInvalidDevice;
  });
}

cudaError_t cudaMemcpyPeerAsync(void* dst, int dstDevice, const void* src, int srcDevice, size_t count,
                                cudaStream_t stream) {
  return call({"cudaMemcpyPeerAsync", cudaErrorUnknown}, [&](Lock& lock) {
    return areDevices(dstDevice, srcDevice)
               ? copy(lock, dst, src, count, cudaMemcpyDeviceToDevice, stream, HostWaits::AsDocumented)
               : cudaErrorInvalidDevice;
  });
}

cudaError_t cudaMemset(void* devPtr, int value, size_t count) {
  return call({"cudaMemset", cudaErrorUnknown}, [&](Lock& lock) {
    // Of device memory it does not wait for its end, though it is called synchronous.
    const cudaError_t error = refuseSynchronous(lock);
    return error != cudaSuccess ? error : fill(lock, devPtr, value, count, cudaStreamLegacy);
  });
}

cudaError_t cudaMemsetAsync(void* devPtr, int value, size_t count, cudaStream_t stream) {
  return call({"cudaMemsetAsync", cudaErrorUnknown},
              [&](Lock& lock) { return fill(lock, devPtr, value, count, stream); });
}

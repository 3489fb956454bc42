// Streams as the API sees them.
#include "tests/cudasim/runtime/api.h"
#include "tests/cudasim/runtime/capture.h"

using namespace peal::cudasim;

namespace {

constexpr int kGreatestPriority = -5;

cudaError_t create(Lock& lock, cudaStream_t* handle, unsigned flags, int priority) {
  if (handle == nullptr || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) {
    return cudaErrorInvalidValue;
  }
  priority = std::max(kGreatestPriority, std::min(0, priority));
  *handle = runtime().engine.makeStream(lock, currentDevice(), flags, priority)->handle;
  return cudaSuccess;
}

// Calls that look something up in a stream.
template <class Body>
cudaError_t withStream(const Function& function, cudaStream_t handle, Body&& body) {
  return call(function, [&](Lock& lock) {
    const StreamRef stream = runtime().engine.find(lock, handle, currentDevice());
    return stream ? body(lock, stream) : cudaErrorInvalidResourceHandle;
  });
}

template <class Value, class Given>
cudaError_t give(Value* to, Given value) {
  if (to == nullptr) {
    return cudaErrorInvalidValue;
  }
  *to = static_cast<Value>(value);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaStreamCreate(cudaStream_t* pStream) {
  return call({"cudaStreamCreate", cudaErrorMemoryAllocation},
              [&](Lock& lock) { return create(lock, pStream, cudaStreamDefault, 0); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* pStream, unsigned int flags) {
  return call({"cudaStreamCreateWithFlags", cudaErrorMemoryAllocation},
              [&](Lock& lock) { return create(lock, pStream, flags, 0); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* pStream, unsigned int flags, int priority) {
  return call({"cudaStreamCreateWithPriority", cudaErrorMemoryAllocation},
              [&](Lock& lock) { return create(lock, pStream, flags, priority); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  return call({"cudaDeviceGetStreamPriorityRange", cudaErrorUnknown}, [&](Lock&) {
    if (leastPriority != nullptr) {
      *leastPriority = 0;
    }
    if (greatestPriority != nullptr) {
      *greatestPriority = kGreatestPriority;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const Function function{.name = "cudaStreamDestroy", .usualError = cudaErrorUnknown, .releases = true};
  return withStream(function, handle, [&](Lock& lock, const StreamRef& stream) {
    if (stream->isInternal) {
      return cudaErrorInvalidResourceHandle;
    }
    if (stream->capture) {
      invalidate(lock, *stream->capture);
      leaveCapture(lock, *stream);
    }
    runtime().engine.close(lock, stream);  // what it holds still runs
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const Function function{"cudaStreamSynchronize", cudaErrorUnknown};
  return withStream(function, handle, [&](Lock& lock, const StreamRef& stream) {
    if (const cudaError_t error = refuseWait(lock, stream); error != cudaSuccess) {
      return error;
    }
    if (invalidateForUnsafeCall(lock)) {
      return cudaErrorStreamCaptureUnsupported;
    }
    Engine& engine = runtime().engine;
    engine.await(lock, engine.pending(lock, stream));
    return runtime().lostOr(stream->device, cudaSuccess);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const Function function{"cudaStreamQuery", cudaErrorUnknown};
  return withStream(function, handle, [&](Lock& lock, const StreamRef& stream) {
    if (const cudaError_t error = refuseWait(lock, stream); error != cudaSuccess) {
      return error;
    }
    if (invalidateForUnsafeCall(lock)) {
      return cudaErrorStreamCaptureUnsupported;
    }
    const cudaError_t error = runtime().lostOr(stream->device, cudaSuccess);
    return error == cudaSuccess && !runtime().engine.pending(lock, stream).empty() ? cudaErrorNotReady
                                                                                   : error;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call({"cudaDeviceSynchronize", cudaErrorUnknown}, [&](Lock& lock) {
    if (const cudaError_t error = refuseDeviceWait(lock, currentDevice()); error != cudaSuccess) {
      return error;
    }
    if (invalidateForUnsafeCall(lock)) {
      return cudaErrorStreamCaptureUnsupported;
    }
    Engine& engine = runtime().engine;
    engine.await(lock, engine.pendingOnDevice(lock, currentDevice()));
    return runtime().lostOr(currentDevice(), cudaSuccess);
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return withStream({"cudaStreamGetDevice", cudaErrorUnknown}, handle,
                    [&](Lock&, const StreamRef& stream) { return give(device, stream->device); });
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* streamId) {
  return withStream({"cudaStreamGetId", cudaErrorUnknown}, handle,
                    [&](Lock&, const StreamRef& stream) { return give(streamId, stream->id); });
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned int* flags) {
  return withStream({"cudaStreamGetFlags", cudaErrorUnknown}, handle,
                    [&](Lock&, const StreamRef& stream) { return give(flags, stream->flags); });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return withStream({"cudaStreamGetPriority", cudaErrorUnknown}, handle,
                    [&](Lock&, const StreamRef& stream) { return give(priority, stream->priority); });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t fn, void* userData) {
  const Function function{"cudaLaunchHostFunc", cudaErrorUnknown};
  return withStream(function, handle, [&](Lock& lock, const StreamRef& stream) {
    if (fn == nullptr) {
      return cudaErrorInvalidValue;
    }
    Work work;
    work.type = cudaGraphNodeTypeHost;
    work.device = stream->device;
    work.run = [fn, userData] { callBack(fn, userData); };
    return issue(lock, stream, std::move(work));
  });
}

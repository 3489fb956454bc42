#include "tests/cudasim/runtime/api.h"

#include "tests/cudasim/runtime/calls.h"
#include "tests/cudasim/runtime/capture.h"

namespace peal::cudasim {
namespace {

thread_local cudaError_t lastErrorOfThread = cudaSuccess;
thread_local bool insideCallback = false;

}  // namespace

cudaError_t lastError() { return lastErrorOfThread; }
void setLastError(cudaError_t error) { lastErrorOfThread = error; }

void callBack(cudaHostFn_t function, void* userData) {
  const bool before = std::exchange(insideCallback, true);
  function(userData);
  insideCallback = before;
}

Entry enter(const Function& function) {
  Entry entry;
  const cudaError_t injected = countCall(function.name, function.usualError);
  (function.releases ? entry.injected : entry.error) = injected;
  if (entry.error != cudaSuccess) {
    return entry;
  }
  if (insideCallback) {
    entry.error = cudaErrorNotPermitted;
  } else if (isForkedCopy()) {
    entry.error = cudaErrorInitializationError;
  } else if (function.needsDriver && runtime().machine.driverVersion < CUDART_VERSION) {
    entry.error = cudaErrorInsufficientDriver;
  } else if (function.needsDriver && runtime().visibleDevices() == 0) {
    entry.error = cudaErrorNoDevice;
  }
  return entry;
}

cudaError_t forbidden(Lock& lock, const Function& function) {
  if (function.needsDriver && function.needsDevice) {
    if (const cudaError_t lost = runtime().lostOr(currentDevice(), cudaSuccess); lost != cudaSuccess) {
      return lost;
    }
  }
  if (function.unsafeInCapture && invalidateForUnsafeCall(lock)) {
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

}  // namespace peal::cudasim

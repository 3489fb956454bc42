// What every function of the API does besides its work: counting and injected errors, a driver or devices
// that are missing, a lost device, calls that a capture forbids, the thread's last error. Each function is
// one call(function, body).
#pragma once
#include <cuda_runtime.h>

#include "tests/cudasim/runtime/state.h"

namespace peal::cudasim {

struct Function {
  const char* name;
  cudaError_t usualError;        // injected where the test names none
  bool unsafeInCapture = false;  // captures forbid it, unless relaxed (cudaThreadExchangeStreamCaptureMode)
  bool releases = false;         // does its work although an error is injected
  bool needsDriver = true;       // false: works without driver and devices
  bool needsDevice = true;       // false: works although the current device is lost
};

// The thread's last error, for cudaGetLastError.
cudaError_t lastError();
void setLastError(cudaError_t error);

// Runs a user's callback: a host function or a destructor. CUDA calls inside it are refused.
void callBack(cudaHostFn_t function, void* userData);

struct Entry {
  cudaError_t error = cudaSuccess;     // the call ends with this, before its work
  cudaError_t injected = cudaSuccess;  // ... after its work
};
Entry enter(const Function& function);
// What stands in the way once the runtime is locked.
cudaError_t forbidden(Lock& lock, const Function& function);

template <class Body>
cudaError_t call(const Function& function, Body&& body) {
  const Entry entry = enter(function);
  cudaError_t error = entry.error;
  if (error == cudaSuccess) {
    Lock lock(runtime().mutex);
    error = forbidden(lock, function);
    if (error == cudaSuccess) {
      error = body(lock);
    }
    if (error == cudaSuccess) {
      error = entry.injected;
    }
  }
  if (error != cudaSuccess) {
    setLastError(error);
  }
  return error;
}

}  // namespace peal::cudasim

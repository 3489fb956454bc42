// Names and sentences of error codes; the last error of a thread.
#include "tests/cudasim/runtime/api.h"

using namespace peal::cudasim;

namespace {

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
#define PEAL_CUDA_ERROR(name, value, text) {name, #name, text},
#include <cudasim/cuda_errors.inc>
#undef PEAL_CUDA_ERROR
};

const ErrorText* find(cudaError_t code) {
  for (const ErrorText& error : kErrors) {
    if (error.code == code) {
      return &error;
    }
  }
  return nullptr;
}

// A lost device's error comes back from these as from everything else.
cudaError_t lostOr(cudaError_t error) {
  if (isForkedCopy()) {
    return error;  // the runtime's lock may have been held at the fork
  }
  Runtime& all = runtime();
  const Lock lock(all.mutex);
  return all.lostOr(currentDevice(), error);
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* found = find(error);
  return found != nullptr ? found->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* found = find(error);
  return found != nullptr ? found->text : "unrecognized error code";
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = lastError();
  setLastError(cudaSuccess);
  return lostOr(error);
}

cudaError_t cudaPeekAtLastError() { return lostOr(lastError()); }

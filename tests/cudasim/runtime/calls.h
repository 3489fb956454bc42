// Counts calls of the API and decides which of them fails (cudasim/runtime.h: failCall, callCount).
#pragma once
#include <cuda_runtime.h>

namespace peal::cudasim {

// Counts this call; the error it shall return, cudaSuccess for none.
cudaError_t countCall(const char* function, cudaError_t usualError);

// Counts from zero again; what CUDASIM_FAIL says fails, and nothing else.
void restartCalls();

}  // namespace peal::cudasim

// What functions of the driver share: they are calls like those of the runtime, with its codes (the numbers
// are the same), and leave the thread's last runtime error as it was.
#pragma once
#include <cuda.h>

#include <map>
#include <string>

#include "tests/cudasim/runtime/api.h"

namespace peal::cudasim {

template <class Body>
CUresult driverCall(const Function& function, Body&& body) {
  const cudaError_t before = lastError();
  const cudaError_t error = call(function, body);
  setLastError(before);
  return static_cast<CUresult>(error);
}

// Those of memory by pieces, by name.
std::map<std::string, void*> pieceFunctions();

}  // namespace peal::cudasim

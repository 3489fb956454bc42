// Which GPU of this machine stands for device `number` of a test: they are fewer, often one. Numbers below
// zero mean host memory.
#pragma once
#include <cuda_runtime.h>

namespace peal::cudasim {

inline int deviceOf(int number) {
  static const int count = [] {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 ? devices : 1;
  }();
  return number < 0 ? number : number % count;
}

}  // namespace peal::cudasim

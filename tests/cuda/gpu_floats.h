// Buffers of floats on simulated GPUs, and ranks that one thread drives, for tests of the public API.
#pragma once
#include "tests/cuda/gpu_ranks.h"

namespace peal::test {

inline std::vector<std::byte> bytesOf(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}
inline std::vector<float> floatsOf(const GpuBuffer& buffer) {
  const std::vector<std::byte> bytes = buffer.read();
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!bytes.empty()) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return values;
}
inline GpuBuffer filled(int device, size_t count, float value) {
  return {device, bytesOf(std::vector<float>(count, value))};
}

// Ranks that one thread drives: a buffer for each.
struct Driven {
  std::vector<int> devices;
  std::vector<pealComm_t> comms;
  std::vector<GpuBuffer> buffers;

  Driven(const std::vector<int>& on, size_t count) : devices(on), comms(initAll(on)) {
    for (size_t rank = 0; rank < on.size(); ++rank) {
      buffers.push_back(filled(on[rank], count, static_cast<float>(rank + 1)));
    }
  }
  ~Driven() {
    buffers.clear();
    destroyAll(comms);
  }
  int size() const { return static_cast<int>(comms.size()); }
  void synchronize() const {
    for (const int device : devices) {
      CUDA_OK(cudaSetDevice(peal::cudasim::deviceOf(device)));
      CUDA_OK(cudaDeviceSynchronize());
    }
  }
};

}  // namespace peal::test

// Memory for kernel tests that use no simulated runtime: device memory, registered while it lives.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tests/cudasim/core/memory.h"

namespace peal::cudasim {

// Filled with garbage, as fresh device memory is. Page-aligned; behind the last byte lies nothing that a
// kernel may touch.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes, int device = 0, MemoryKind kind = MemoryKind::Device);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  size_t bytes() const { return bytes_; }
  // As kernels address it.
  template <class T = std::byte>
  T* device(size_t offsetBytes = 0) const {
    return reinterpret_cast<T*>(base_ + offsetBytes);
  }
  // As the test reads and writes it.
  template <class T = std::byte>
  T* host(size_t offsetBytes = 0) const {
    return toHost(device<T>(offsetBytes));
  }
  void fill(uint8_t value) const;
  uintptr_t base() const { return base_; }

 private:
  uintptr_t base_ = 0;
  size_t bytes_ = 0, mappedBytes_ = 0;
};

}  // namespace peal::cudasim

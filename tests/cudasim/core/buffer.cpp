#include "tests/cudasim/core/buffer.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/cudasim/core/sanitizers.h"

namespace peal::cudasim {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

DeviceBuffer::DeviceBuffer(size_t bytes, int device, MemoryKind kind)
    : bytes_(bytes), mappedBytes_((bytes + kPageBytes - 1) / kPageBytes * kPageBytes) {
  if (bytes == 0) {
    return;
  }
  void* memory = mmap(nullptr, mappedBytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "cudasim: no memory for a buffer of %zu bytes\n", bytes);
    std::abort();
  }
  base_ = reinterpret_cast<uintptr_t>(memory) | (kind == MemoryKind::Device ? kTag : 0);
  fill(0xa5);
  poison(host() + bytes, mappedBytes_ - bytes);
  Allocation allocation;
  allocation.base = base_;
  allocation.bytes = bytes;
  allocation.kind = kind;
  allocation.device = device;
  registerAllocation(allocation);
}

DeviceBuffer::~DeviceBuffer() {
  if (base_ != 0) {
    endAllocation(base_, End::Freed);
    unpoison(host(), mappedBytes_);
    munmap(host(), mappedBytes_);
  }
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : base_(std::exchange(other.base_, 0)),
      bytes_(std::exchange(other.bytes_, 0)),
      mappedBytes_(std::exchange(other.mappedBytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(mappedBytes_, other.mappedBytes_);
  return *this;
}

void DeviceBuffer::fill(uint8_t value) const {
  if (bytes_ > 0) {  // an empty buffer has no address
    std::memset(host(), value, bytes_);
  }
}

}  // namespace peal::cudasim

// Memory that ends at a page without access, with known bytes in front and behind the part in use: reading
// past the end is a fault, writing around the part is seen by intact().
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace peal {

class GuardedBuffer {
 public:
  // The part in use ends gapBytes before the page without access.
  GuardedBuffer(size_t bytes, size_t gapBytes) : bytes_(bytes), gapBytes_(gapBytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    usableBytes_ = (bytes + gapBytes + kFrontBytes + page - 1) / page * page;
    mappedBytes_ = usableBytes_ + page;
    void* mapped = mmap(nullptr, mappedBytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED || mprotect(static_cast<char*>(mapped) + usableBytes_, page, PROT_NONE) != 0) {
      throw std::bad_alloc();
    }
    base_ = static_cast<uint8_t*>(mapped);
    std::memset(base_, kCanary, usableBytes_);
  }
  ~GuardedBuffer() { munmap(base_, mappedBytes_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  uint8_t* data() const { return base_ + usableBytes_ - gapBytes_ - bytes_; }
  size_t size() const { return bytes_; }

  bool intact() const {
    const auto isCanary = [](uint8_t byte) { return byte == kCanary; };
    return std::all_of(data() - kFrontBytes, data(), isCanary) &&
           std::all_of(data() + bytes_, data() + bytes_ + gapBytes_, isCanary);
  }

 private:
  static constexpr size_t kFrontBytes = 256;
  static constexpr uint8_t kCanary = 0xa5;
  size_t bytes_, gapBytes_, usableBytes_ = 0, mappedBytes_ = 0;
  uint8_t* base_ = nullptr;
};

}  // namespace peal

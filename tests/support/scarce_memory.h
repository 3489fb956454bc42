// A system without memory for slots: in the C library's place, in the one source of a test program that
// includes this.
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace peal::test {

// Allocations of so many bytes are refused to this thread.
inline thread_local size_t refusedBytes = SIZE_MAX;

}  // namespace peal::test

extern "C" void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  void* memory = nullptr;
  const int code = bytes == peal::test::refusedBytes ? ENOMEM : posix_memalign(&memory, alignment, bytes);
  if (code != 0) {
    errno = code;
    return nullptr;
  }
  return memory;
}

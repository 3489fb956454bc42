// Memory for slots, aligned to cache lines. Not zeroed: what no message uses costs nothing.
//
// Used by fabrics that keep their slots in memory of their own.
#pragma once
#include <cstddef>
#include <memory>
#include <new>

namespace peal {

inline constexpr size_t kCacheLineBytes = 64;

using AlignedMemory = std::unique_ptr<std::byte[], void (*)(std::byte*)>;

inline AlignedMemory allocateAligned(size_t bytes) {
  return {static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kCacheLineBytes})),
          [](std::byte* memory) { ::operator delete[](memory, std::align_val_t{kCacheLineBytes}); }};
}

}  // namespace peal

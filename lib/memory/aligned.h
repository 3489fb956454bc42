// Memory for slots, aligned to cache lines. Not zeroed: what no message uses costs nothing.
//
// Used by fabrics that keep their slots in memory of their own.
#pragma once
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "lib/base/result.h"

namespace peal {

inline constexpr size_t kCacheLineBytes = 64;

using AlignedMemory = std::unique_ptr<std::byte[], void (*)(std::byte*)>;

// `slots` of `strideBytes`, for one direction of a link. How much it is depends on variables, so that
// there is not enough is an error that names them.
inline Result<AlignedMemory> allocateSlots(uint64_t slots, size_t strideBytes) {
  const size_t bytes = (slots * strideBytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
  AlignedMemory memory(static_cast<std::byte*>(std::aligned_alloc(kCacheLineBytes, bytes)),
                       [](std::byte* base) { std::free(base); });
  if (memory == nullptr) {
    return Error{pealSystemError,
                 fmt::format("no memory for {} bytes of a link to one peer, {} slots of {} bytes. Use "
                             "smaller or fewer slots (PEAL_SLOT_BYTES, PEAL_SLOTS).",
                             bytes, slots, strideBytes)};
  }
  return memory;
}

}  // namespace peal

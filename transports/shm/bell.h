// Sleeping on, and ringing, the bell of a rank (layout.h says how the two pair).
#pragma once
#include <cstdint>

#include "lib/base/fences.h"
#include "transports/shm/layout.h"

namespace peal::shm {

// Asks for a line that is going to be written. Only a hint.
inline void fetchToWrite(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(line)));  // the builtin fetches it to read
#else
  __builtin_prefetch(line, 1);
#endif
}

// The same for a slot, which whoever read it last has; only as much as takes no longer than it saves.
inline void fetchSlot(const std::byte* slot, size_t bytes) {
  constexpr size_t kMostBytes = 4096;
  for (size_t at = 0; bytes <= kMostBytes && at < bytes; at += kLine) {
    fetchToWrite(slot + at);
  }
}

void ringBell(Bell& bell);
// Waits until the doorbell differs from `token`, or `us` microseconds at most.
void sleepOnBell(Bell& bell, uint32_t token, int64_t us);

}  // namespace peal::shm

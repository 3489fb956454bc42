#include "lib/base/fences.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace peal {

// TSan does not model fences. Nothing is missed: data are ordered by releases and acquires, the fences only
// decide whether one side sees that the other is there.
//
// On x86-64 mfence, not the locked instruction that compilers make of it: that one lets the next load, a look
// at the ring, start early and take the peer's line away while it is being written. An exchange of two lines
// took 135 ns with mfence, 190 ns without (Sapphire Rapids, two virtual cores, 2026-11-30).
void fullFence() {
#if defined(__x86_64__)
  asm volatile("mfence" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

void loadFence() { std::atomic_thread_fence(std::memory_order_acquire); }

bool registeredForFences() {
  static std::atomic<pid_t> registered{0};  // this process, or its parent from before it was forked
  const pid_t self = getpid();
  if (registered.load(std::memory_order_relaxed) != self &&
      syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0) {
    registered.store(self, std::memory_order_relaxed);
  }
  return registered.load(std::memory_order_relaxed) == self;
}

void fenceAll() {
  fullFence();
  if (registeredForFences() && syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) != 0) {
    // Forbidden since this process registered (a filter of system calls). No store is on its way for so long.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace peal

// Time: a monotonic clock and deadlines. Nothing here reads wall time.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

namespace peal {

using Clock = std::chrono::steady_clock;

// A moment after which a wait gives up.
class Deadline {
 public:
  static Deadline afterMs(int64_t ms) { return Deadline(Clock::now() + std::chrono::milliseconds(ms)); }
  bool passed() const { return Clock::now() >= at_; }
  // Milliseconds left, at least 0; fits poll().
  int leftMs() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, INT32_MAX));
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

// Tells the core that this is a spin loop.
inline void cpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace peal

#include "transports/shm/distance.h"

#include <algorithm>

#include "lib/base/clock.h"
#include "lib/base/fences.h"

namespace peal::shm {
namespace {

// On two virtual cores of an AMD EPYC a line of the peer's took 10 to 40 ns from a core close by and 90 to
// 130 from one far away; one that is here already took less than 8 (2026-12-01, in all-reduces of 1 to 12
// KiB).
constexpr int64_t kComesFromPeerNs = 8;
constexpr int64_t kFarNs = 75;

int64_t nsOfLoad(const std::atomic<uint32_t>& line) {
  const Clock::time_point start = Clock::now();
  static_cast<void>(line.load(std::memory_order_acquire));
  loadFence();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

}  // namespace

void Distance::note(int64_t ns) {
  if (ns >= kComesFromPeerNs) {
    farLooks_ = std::clamp(farLooks_ + (ns >= kFarNs ? 1 : -1), 0, kMostFarLooks);
  }
}

// The second load finds the line here: what is left of the first is its way, without what the clock takes.
bool Distance::look(const std::atomic<uint32_t>& line) {
  const int64_t first = nsOfLoad(line);
  note(first - nsOfLoad(line));
  return isFar();
}

}  // namespace peal::shm

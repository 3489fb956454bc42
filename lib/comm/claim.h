// Who uses a communicator's endpoint: the operation that runs, or a thread that looks at the peers' health or
// the counters between two operations. The operation claims it with one store, since every call does; an
// inspector pays for the order between the two (lib/base/fences.h).
//
// Owned by Communicator. Operations claim one after the other, in the order of their tickets.
#pragma once
#include <atomic>
#include <chrono>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/fences.h"

namespace peal {

class Claim {
 public:
  // Waits for an inspector who came before it; those who come now give way.
  void beginOperation() {
    running_.store(true, std::memory_order_relaxed);
    fenceForSlowSide(everybodyFences_);                             // pairs with the fence in tryInspect()
    if (inspected_.load(std::memory_order_acquire)) [[unlikely]] {  // pairs with endInspection()
      awaitInspector();
    }
  }
  void endOperation() {
    running_.store(false, std::memory_order_release);
  }  // pairs with the loads in tryInspect()

  // False: an operation runs, or somebody else inspects.
  bool tryInspect() {
    if (running_.load(std::memory_order_relaxed) || inspected_.exchange(true, std::memory_order_acquire)) {
      return false;
    }
    fenceAll();  // one of the two sees the other
    if (running_.load(std::memory_order_acquire)) {
      endInspection();
      return false;
    }
    return true;
  }
  // Between two operations, however quickly they follow each other.
  void inspect() {
    for (int tries = 0; !tryInspect(); ++tries) {
      if (tries < kYields) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kNap);
      }
    }
  }
  void endInspection() { inspected_.store(false, std::memory_order_release); }

 private:
  static constexpr int kSpins = 100;   // an inspection takes a microsecond or two,
  static constexpr int kYields = 100;  // unless its thread lost its processor
  static constexpr std::chrono::microseconds kNap{20};

  void awaitInspector() {
    for (int looks = 0; inspected_.load(std::memory_order_acquire); ++looks) {
      if (looks < kSpins) {
        cpuRelax();
      } else {
        std::this_thread::yield();
      }
    }
  }

  const bool everybodyFences_ = registeredForFences();
  std::atomic<bool> running_{false};
  std::atomic<bool> inspected_{false};
};

}  // namespace peal

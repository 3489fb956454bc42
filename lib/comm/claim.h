// Who uses a communicator's endpoint: the operation that runs, or a thread that looks at the peers' health or
// the counters between two operations. The operation claims it with one store, since every call does; an
// inspector pays for the order between the two (lib/base/fences.h).
//
// Owned by Communicator. Operations claim one after the other, in the order of their tickets. An operation
// waits for an inspector without a deadline, as for a lock: that one waits for nobody while it looks. In a
// forked child neither is there.
#pragma once
#include <atomic>
#include <chrono>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/fences.h"
#include "lib/base/forkwatch.h"

namespace peal {

class Claim final : private ForkListener {
 public:
  Claim() { watchForks(*this); }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() { unwatchForks(*this); }

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
  // Between two operations: of moments that are short it may miss some. False: the deadline came first.
  bool inspect(Deadline deadline) {
    bool isIn = tryInspect();
    for (int tries = 0; !isIn && !deadline.passed(); ++tries) {
      if (tries < kYields) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kNap);
      }
      isIn = tryInspect();
    }
    return isIn;
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

  // Whoever held it is the parent's thread.
  void inForkedChild() noexcept override {
    running_.store(false, std::memory_order_relaxed);
    inspected_.store(false, std::memory_order_relaxed);
  }

  const bool everybodyFences_ = registeredForFences();
  std::atomic<bool> running_{false};
  std::atomic<bool> inspected_{false};
};

}  // namespace peal

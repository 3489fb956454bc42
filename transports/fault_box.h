// The first fault of an endpoint. Raised once, by whoever meets it; kept for good.
#pragma once
#include <atomic>
#include <mutex>

#include "lib/base/result.h"

namespace peal {

class FaultBox {
 public:
  // The first one stays. `culpritRank`: whose fault it is, this rank's own if it is nobody else's.
  void raise(int culpritRank, Error error) {
    const std::lock_guard lock(mutex_);
    if (!raised_.load(std::memory_order_relaxed)) {
      error_ = std::move(error);
      culpritRank_ = culpritRank;
      raised_.store(true, std::memory_order_release);  // pairs with the load in raised()
    }
  }
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  // Only after raised(): never changes again.
  const Error& error() const { return error_; }
  int culpritRank() const { return culpritRank_; }

 private:
  std::mutex mutex_;  // guards the decision who is first
  std::atomic<bool> raised_{false};
  Error error_;
  int culpritRank_ = -1;
};

}  // namespace peal

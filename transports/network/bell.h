// What ends this rank's sleep: a count, and a descriptor that becomes readable when it rises.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

#include "lib/bootstrap/socket.h"

namespace peal::network {

class Bell {
 public:
  Bell();
  bool works() const { return event_.fd() >= 0; }
  // From any thread.
  void ring();
  uint32_t count() const { return count_.load(std::memory_order_acquire); }  // pairs with ring()
  int descriptor() const { return event_.fd(); }
  // Makes the descriptor unreadable again.
  void quiet();
  // From now on ring() calls that, too. Before other threads ring.
  void alsoCall(std::function<void()> other);
  // In a forked child: the descriptor is the parent's.
  void closeInChild() { event_.close(); }

 private:
  Socket event_;
  std::atomic<uint32_t> count_{0};
  std::function<void()> other_;
  std::atomic<bool> haveOther_{false};
};

}  // namespace peal::network

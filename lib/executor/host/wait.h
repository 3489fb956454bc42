// Waiting on the host: spin, yield, then sleep on the endpoint's doorbell; with a deadline, the abort flag
// and a look at the peers' health on the way (docs/DESIGN.md, D8).
#pragma once
#include <optional>
#include <string>
#include <type_traits>

#include "lib/base/clock.h"
#include "lib/executor/host/operation.h"

namespace peal {

// A reference to a callable `bool()`, for the slow path that is not a template.
class ReadyCheck {
 public:
  template <class F>
  explicit ReadyCheck(F& ready)
      : object_(&ready), call_([](void* object) { return (*static_cast<F*>(object))(); }) {}
  bool operator()() const { return call_(object_); }

 private:
  void* object_;
  bool (*call_)(void*);
};

// The waits of one operation. Remembers the operation's first fault; after it every wait fails at once.
class Waiter {
 public:
  Waiter(HostContext& context, const Digest& digest) : context_(context), digest_(digest) {}

  // Waits until ready() is true. peerRank: who is waited for (-1: several). False: there is a fault.
  template <class F>
  bool until(int peerRank, F&& ready) {
    if (fault_) {
      return false;
    }
    return ready() || slow(peerRank, ReadyCheck(ready));
  }
  // Waits until what was sent needs this rank no more: the last wait of an operation.
  void untilSettled() {
    if (context_.polled != nullptr) {
      until(-1, [this] { return context_.polled->settled(); });
    }
  }
  // Before an operation that read peers' memory in place is right: fails if any was taken back meanwhile.
  void untilReadRight() {
    if (context_.endpoint->readWithdrawn()) [[unlikely]] {
      until(-1, [] { return false; });  // why that peer left is about to be known
    }
  }
  void fail(Error error, int culpritRank);
  bool failed() const { return fault_.has_value(); }
  std::optional<Fault> takeFault() { return std::move(fault_); }

 private:
  bool slow(int peerRank, ReadyCheck ready);
  bool healthy(int peerRank);
  bool agreed(int peerRank);
  void poll() {
    if (context_.polled != nullptr) {
      context_.polled->poll();
    }
  }
  std::string missingRanks(int peerRank) const;

  HostContext& context_;
  const Digest& digest_;
  std::optional<Fault> fault_;
};

}  // namespace peal

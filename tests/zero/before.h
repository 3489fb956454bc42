// What tests that drive the engine through its C++ face need of lib/zero/operations.h and of transports/,
// whose headers cannot be included beside it.
#pragma once
#include <array>
#include <functional>
#include <string>

#include "peal/zero.h"

namespace peal::zero::test {

enum class Kind { AllReduce, ReduceScatter, Gather, Replicas, Control, Other, Sum, Update, Fused };
inline constexpr int kKinds = 9;
const char* nameOf(Kind kind);

// Calls a function before each operation of an engine, on the thread that runs it, as long as it exists. The
// engine must outlive it, and be between steps at its beginning and end.
class Before {
 public:
  Before(pealZero_t zero, std::function<void(Kind)> call);
  ~Before();
  Before(const Before&) = delete;
  Before& operator=(const Before&) = delete;

 private:
  pealZero_t zero_;
  std::function<void(Kind)> call_;
};

// Waits until the engine's stream has done all that is queued.
void finishQueued(pealZero_t zero);

// Why UCX cannot be used here; empty if it can.
std::string whyNoUcx();

// What all communicators of an engine counted at their links, added up, once all that is queued is done.
pealCommStats_t sentByLinks(pealZero_t zero);

}  // namespace peal::zero::test

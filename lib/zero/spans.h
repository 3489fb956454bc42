// What the engine tells a tracer: its collectives as they ran on the stream, and its caller's waits for them.
//
// Owned by Collectives. The stream's worker only fills in a span that was prepared for it; the callback runs
// on the caller's thread, inside a later call of the engine, so that a tracer needs no locks. Without a
// callback nothing is kept and nothing is allocated.
#pragma once
#include <atomic>
#include <deque>

#include "lib/base/clock.h"
#include "peal/zero.h"

namespace peal::zero {

// What a collective is for: its counter (pealZeroAllReduce ...), and the bucket or unit; -1: neither.
struct Purpose {
  Purpose(int counterIs, int64_t indexIs = -1) : counter(counterIs), index(static_cast<int>(indexIs)) {}
  int counter;
  int index;
};

// Of the engine's stream, written by its worker in order.
struct StreamClock {
  Clock::time_point began, ended;       // of the last collective
  std::atomic<int64_t> nanoseconds{0};  // stored by the worker, loaded by the caller; a figure for reports
};

class SpanLog {
 public:
  // Of a collective that is queued. The address stays until it was delivered.
  struct Running {
    pealZeroSpan_t span;
    const StreamClock* clock;
    std::atomic<bool> ended{false};  // released by end(), acquired by deliver()
  };

  bool isOn() const { return callback_ != nullptr; }
  void set(pealZeroTrace_t callback, void* user);

  Running* issued(Purpose purpose, uint64_t bytes, const StreamClock& clock);
  // The worker, right after the collective; running: a Running.
  static void end(void* running);
  void waited(Purpose purpose, Clock::time_point began, Clock::time_point ended);
  // Gives what has ended to the callback, in the order of issue.
  void deliver();

 private:
  pealZeroTrace_t callback_ = nullptr;
  void* user_ = nullptr;
  std::deque<Running> running_;
};

}  // namespace peal::zero

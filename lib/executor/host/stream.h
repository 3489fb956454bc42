// Host streams and events: a worker thread that runs what is queued, in order.
//
// Made by the C API (lib/api/). A stream owns its thread and its queue; an event is shared by whoever records
// or waits for it. Tasks report errors; the first is kept until synchronize() hands it out.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/result.h"

namespace peal {

class HostEvent {
 public:
  // A record makes the event pending until the matching complete().
  uint64_t record();
  void complete(uint64_t generation);
  // The generation that a wait issued now waits for; 0: never recorded.
  uint64_t recorded();
  void waitFor(uint64_t generation);
  bool isComplete();
  // When the last record completed.
  std::optional<Clock::time_point> completedAt();

 private:
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  uint64_t recorded_ = 0;
  uint64_t completed_ = 0;
  Clock::time_point completedAt_{};
};

class HostStream {
 public:
  using Task = std::function<Result<void>()>;

  HostStream();
  ~HostStream();  // runs what is queued first
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void enqueue(Task task);
  // Blocks until all that was queued before is done. The first error since the last call, once.
  Result<void> synchronize();
  bool idle();

 private:
  void work();

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<Task> queue_;
  uint64_t queued_ = 0;
  uint64_t finished_ = 0;
  bool closing_ = false;
  std::optional<Error> error_;
  std::thread worker_;  // last: starts when the rest is ready
};

}  // namespace peal

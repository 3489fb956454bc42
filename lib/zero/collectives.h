// The engine's communication: its own communicator (sums in rank order), one host stream on which all its
// collectives run in the order of issue, marks in that stream, counters and clocks.
//
// The caller's thread issues and waits, the stream's worker runs. Every edge between the two is a Mark: the
// worker's results may be touched only after wait(). Knows no stage and no bucket.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lib/base/clock.h"
#include "lib/base/result.h"
#include "peal/zero.h"

namespace peal::zero {

// A place in the stream. Recorded again and again; waiting for one never recorded is no wait.
class Mark {
 public:
  Mark() = default;
  ~Mark();
  Mark(Mark&& other) noexcept;
  Mark& operator=(Mark&&) = delete;

 private:
  friend class Collectives;
  pealEvent_t event_ = nullptr;  // made at the first record
  bool pending_ = false;         // recorded and not yet waited for
};

enum class Teardown { Finish, Abort };

class Collectives {
 public:
  // Collective over parent.
  static Result<std::unique_ptr<Collectives>> make(pealComm_t parent);
  // Finish: what is queued runs first. Abort: it is given up, and the other ranks get an error.
  ~Collectives();
  void setTeardown(Teardown teardown) { teardown_ = teardown; }

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  pealComm_t comm() const { return comm_; }

  // counter: pealZeroAllReduce ... pealZeroInspect. Buffers belong to the call until a later mark is passed;
  // counts are copied. In place where peal.h says so.
  Result<void> allReduce(int counter, void* buffer, size_t count, pealDataType_t type);
  Result<void> reduceScatter(int counter, const void* from, void* to, std::span<const size_t> counts,
                             pealDataType_t type);
  Result<void> allGather(int counter, const void* from, void* to, std::span<const size_t> counts,
                         pealDataType_t type);
  Result<void> broadcastFromZero(int counter, void* buffer, size_t count, pealDataType_t type);
  // Runs task(argument) on the stream.
  Result<void> run(void (*task)(void*), void* argument);

  Result<void> record(Mark& mark);
  Result<void> wait(Mark& mark);
  Result<void> finish();  // record and wait

  const pealZeroCounters_t& counters() const { return counters_; }
  double communicationSeconds() const;  // on the stream, in collectives, so far
  double waitSeconds() const { return waitSeconds_; }
  // The first failure: the ranks are no longer in step.
  const std::optional<Error>& broken() const { return broken_; }

 private:
  Collectives() = default;
  template <class Call>
  Result<void> issue(int counter, const char* what, uint64_t elementsSent, pealDataType_t type, Call call);
  Error failure(const char* what, pealResult_t code);

  pealComm_t comm_ = nullptr;
  pealStream_t stream_ = nullptr;
  Teardown teardown_ = Teardown::Finish;
  int ranks_ = 1, rank_ = 0;
  pealZeroCounters_t counters_{};
  double waitSeconds_ = 0;
  Mark end_;
  std::optional<Error> broken_;

  // Touched by the stream's worker, in order.
  struct StreamClock {
    Clock::time_point began;
    std::atomic<int64_t> nanoseconds{0};  // stored by the worker, loaded by the caller; a figure for reports
  };
  StreamClock clock_;
};

}  // namespace peal::zero

// The engine's communication: its own communicator (sums in rank order), one host stream on which all its
// collectives run in the order of issue, marks in that stream, counters and clocks.
//
// The caller's thread issues and waits, the stream's worker runs. Every edge between the two is a Mark: the
// worker's results may be touched only after wait(). Knows no stage and no bucket.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lib/base/clock.h"
#include "lib/base/result.h"
#include "lib/zero/spans.h"
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
  pealEvent_t event_ = nullptr;    // made at the first record
  bool pending_ = false;           // recorded and not yet waited for
  Purpose after_ = pealZeroStart;  // the last collective before it
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

  // purpose: the counter, and which bucket or unit it is for. Buffers belong to the call until a later mark
  // is passed; counts are copied. In place where peal.h says so.
  Result<void> allReduce(Purpose purpose, void* buffer, size_t count, pealDataType_t type);
  Result<void> reduceScatter(Purpose purpose, const void* from, void* to, std::span<const size_t> counts,
                             pealDataType_t type);
  Result<void> allGather(Purpose purpose, const void* from, void* to, std::span<const size_t> counts,
                         pealDataType_t type);
  Result<void> broadcastFromZero(Purpose purpose, void* buffer, size_t count, pealDataType_t type);
  // Runs task(argument) on the stream.
  Result<void> run(void (*task)(void*), void* argument);

  Result<void> record(Mark& mark);
  Result<void> wait(Mark& mark);
  Result<void> finish();  // record and wait

  const pealZeroCounters_t& counters() const { return counters_; }
  double communicationSeconds() const;  // on the stream, in collectives, so far
  double waitSeconds() const { return waitSeconds_; }
  // Ends an earlier trace, after what is queued, and begins another; nullptr: none.
  Result<void> setTrace(pealZeroTrace_t callback, void* user);
  // The first failure: the ranks are no longer in step.
  const std::optional<Error>& broken() const { return broken_; }

 private:
  Collectives() = default;
  template <class Call>
  Result<void> issue(Purpose purpose, const char* what, uint64_t elementsSent, pealDataType_t type,
                     Call call);
  Error failure(const char* what, pealResult_t code);

  pealComm_t comm_ = nullptr;
  pealStream_t stream_ = nullptr;
  Teardown teardown_ = Teardown::Finish;
  int ranks_ = 1, rank_ = 0;
  pealZeroCounters_t counters_{};
  double waitSeconds_ = 0;
  SpanLog spans_;
  Purpose lastIssued_ = pealZeroStart;
  Mark end_;
  std::optional<Error> broken_;

  StreamClock clock_;
};

}  // namespace peal::zero

#include "lib/zero/collectives.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "lib/reduce/reduce.h"
#include "lib/zero/planner.h"

namespace peal::zero {

// ---- marks ----------------------------------------------------------------------------------------------

Mark::~Mark() {
  if (event_ != nullptr) {
    // An event of a stream that has ended cannot refuse; a destructor has nobody to tell.
    (void)pealEventDestroy(event_);
  }
}

Mark::Mark(Mark&& other) noexcept
    : event_(std::exchange(other.event_, nullptr)),
      pending_(std::exchange(other.pending_, false)),
      after_(other.after_) {}

Result<void> Collectives::record(Mark& mark) {
  if (mark.event_ == nullptr) {
    if (const pealResult_t code = pealEventCreate(&mark.event_); code != pealSuccess) {
      return failure("making an event", code);
    }
  }
  if (const pealResult_t code = pealEventRecord(mark.event_, stream_); code != pealSuccess) {
    return failure("recording an event", code);
  }
  mark.pending_ = true;
  mark.after_ = lastIssued_;
  return {};
}

Result<void> Collectives::wait(Mark& mark) {
  if (!mark.pending_) {
    return {};
  }
  const Clock::time_point began = Clock::now();
  const pealResult_t passed = pealEventSynchronize(mark.event_);
  const Clock::time_point ended = Clock::now();
  waitSeconds_ += std::chrono::duration<double>(ended - began).count();
  mark.pending_ = false;
  spans_.waited(mark.after_, began, ended);
  if (passed != pealSuccess) {
    return failure("waiting for communication", passed);
  }
  // The stream goes on after a failed operation; the communicator remembers it.
  pealResult_t state = pealSuccess;
  if (const pealResult_t code = pealCommGetAsyncError(comm_, &state); code != pealSuccess) {
    state = code;
  }
  if (state != pealSuccess && state != pealInProgress) {
    return failure("communication", state);
  }
  return {};
}

Result<void> Collectives::finish() {
  PEAL_TRY(record(end_));
  return wait(end_);
}

Result<void> Collectives::setTrace(pealZeroTrace_t callback, void* user) {
  if (spans_.isOn()) {
    PEAL_TRY(finish());
    spans_.deliver();
  }
  spans_.set(callback, user);
  return {};
}

// ---- life -------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Collectives>> Collectives::make(pealComm_t parent) {
  std::unique_ptr<Collectives> made(new Collectives);
  int parentRank = 0;
  pealResult_t code = pealCommUserRank(parent, &parentRank);
  if (code == pealSuccess) {
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.deterministic = 1;
    config.commName = "zero";
    code = pealCommSplit(parent, 0, parentRank, &made->comm_, &config);
  }
  if (code != pealSuccess) {
    return Error{code,
                 fmt::format("the engine's own communicator cannot be made: {}", pealGetLastError(parent))};
  }
  if (code = pealCommUserRank(made->comm_, &made->rank_); code == pealSuccess) {
    code = pealCommCount(made->comm_, &made->ranks_);
  }
  if (code == pealSuccess) {
    code = pealStreamCreate(&made->stream_);
  }
  if (code != pealSuccess) {
    return made->failure("making the engine's stream", code);
  }
  return made;
}

Collectives::~Collectives() {
  // Nobody is left to tell of errors here. Aborting first lets the stream's operations return at once.
  if (teardown_ == Teardown::Abort) {
    (void)pealCommAbort(comm_);
    (void)pealStreamDestroy(stream_);
  } else {
    (void)pealStreamDestroy(stream_);
    (void)pealCommDestroy(comm_);
  }
}

Error Collectives::failure(const char* what, pealResult_t code) {
  const char* sentence = pealGetLastError(comm_);
  if (*sentence == '\0') {
    sentence = pealGetErrorString(code);
  }
  Error error{code, fmt::format("{} failed on rank {} of {}: {}", what, rank_, ranks_, sentence)};
  if (!broken_) {
    broken_ = error;
  }
  return error;
}

// ---- collectives
// --------------------------------------------------------------------------------------------

// Queues a collective between two readings of the clock.
template <class Call>
Result<void> Collectives::issue(Purpose purpose, const char* what, uint64_t elementsSent, pealDataType_t type,
                                Call call) {
  PEAL_TRY(run([](void* clock) { static_cast<StreamClock*>(clock)->began = Clock::now(); }, &clock_));
  if (const pealResult_t code = call(); code != pealSuccess) {
    return failure(what, code);
  }
  const uint64_t bytes = elementsSent * elementBytes(type);
  ++counters_.calls[purpose.counter];
  counters_.elementsSent[purpose.counter] += elementsSent;
  counters_.bytesSent[purpose.counter] += bytes;
  lastIssued_ = purpose;
  PEAL_TRY(run(
      [](void* argument) {
        auto& clock = *static_cast<StreamClock*>(argument);
        clock.ended = Clock::now();
        const auto spent = std::chrono::nanoseconds(clock.ended - clock.began).count();
        clock.nanoseconds.store(clock.nanoseconds.load(std::memory_order_relaxed) + spent,
                                std::memory_order_relaxed);
      },
      &clock_));
  if (!spans_.isOn()) {
    return {};
  }
  spans_.deliver();
  return run(SpanLog::end, spans_.issued(purpose, bytes, clock_));
}

Result<void> Collectives::run(void (*task)(void*), void* argument) {
  if (const pealResult_t code = pealStreamLaunchHostFunc(stream_, task, argument); code != pealSuccess) {
    return failure("queueing on the engine's stream", code);
  }
  return {};
}

Result<void> Collectives::allReduce(Purpose purpose, void* buffer, size_t count, pealDataType_t type) {
  const uint64_t own = shardElements(count, ranks_, rank_);
  const uint64_t sent = count - own + own * static_cast<uint64_t>(ranks_ - 1);
  return issue(purpose, "all-reduce", sent, type,
               [&] { return pealAllReduce(buffer, buffer, count, type, pealSum, comm_, stream_); });
}

Result<void> Collectives::reduceScatter(Purpose purpose, const void* from, void* to,
                                        std::span<const size_t> counts, pealDataType_t type) {
  uint64_t sent = 0;
  for (int peer = 0; peer < ranks_; ++peer) {
    sent += peer == rank_ ? 0 : counts[static_cast<size_t>(peer)];
  }
  return issue(purpose, "reduce-scatter", sent, type,
               [&] { return pealReduceScatterV(from, to, counts.data(), type, pealSum, comm_, stream_); });
}

Result<void> Collectives::allGather(Purpose purpose, const void* from, void* to,
                                    std::span<const size_t> counts, pealDataType_t type) {
  const uint64_t sent = counts[static_cast<size_t>(rank_)] * static_cast<uint64_t>(ranks_ - 1);
  return issue(purpose, "all-gather", sent, type,
               [&] { return pealAllGatherV(from, to, counts.data(), type, comm_, stream_); });
}

Result<void> Collectives::broadcastFromZero(Purpose purpose, void* buffer, size_t count,
                                            pealDataType_t type) {
  const uint64_t sent = rank_ == 0 ? count * static_cast<uint64_t>(ranks_ - 1) : 0;
  return issue(purpose, "broadcast", sent, type,
               [&] { return pealBcast(buffer, count, type, 0, comm_, stream_); });
}

double Collectives::communicationSeconds() const {
  return 1e-9 * static_cast<double>(clock_.nanoseconds.load(std::memory_order_relaxed));
}

}  // namespace peal::zero

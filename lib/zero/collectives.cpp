#include "lib/zero/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <string>
#include <utility>

#include "lib/reduce/reduce.h"
#include "lib/zero/planner.h"

namespace peal::zero {
namespace {

// What a rank's share of a reduction sends: all blocks but its own.
uint64_t othersElements(std::span<const size_t> counts, int rank) {
  const auto own = static_cast<uint64_t>(counts[static_cast<size_t>(rank)]);
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0}) - own;
}

Operation operationOf(int counter) {
  switch (counter) {
    case pealZeroAllReduce:
      return Operation::AllReduce;
    case pealZeroReduceScatter:
      return Operation::ReduceScatter;
    case pealZeroAllGather:
      return Operation::Gather;
    case pealZeroReplicas:
      return Operation::Replicas;
    case pealZeroControl:
      return Operation::Control;
    case pealZeroFused:
      return Operation::Fused;
    default:
      return Operation::Other;
  }
}

}  // namespace

// ---- marks ----------------------------------------------------------------------------------------------

Mark::Mark(Mark&& other) noexcept
    : event_(std::move(other.event_)), pending_(std::exchange(other.pending_, false)), after_(other.after_) {}

Result<void> Collectives::record(Mark& mark) {
  if (mark.event_ == nullptr) {
    Result<std::unique_ptr<StreamEvent>> event = device_->makeEvent();
    if (!event) {
      return failure("making an event", event.error());
    }
    mark.event_ = std::move(*event);
  }
  PEAL_TRY(checked("recording an event", device_->record(*mark.event_)));
  mark.pending_ = true;
  mark.after_ = lastIssued_;
  return {};
}

Result<void> Collectives::wait(Mark& mark) {
  if (!mark.pending_) {
    return {};
  }
  const Clock::time_point began = Clock::now();
  const Result<void> passed = device_->callerAfter(*mark.event_);
  const Clock::time_point ended = Clock::now();
  mark.pending_ = false;
  if (device_->isHost()) {
    waitSeconds_ += std::chrono::duration<double>(ended - began).count();
    spans_.waited(mark.after_, began, ended);
  }
  PEAL_TRY(checked("waiting for communication", passed));
  return checkComms();
}

// The stream goes on after a failed operation; the communicator remembers it.
Result<void> Collectives::checkComms() {
  for (const pealComm_t comm : comms_) {
    pealResult_t state = pealSuccess;
    if (const pealResult_t code = pealCommGetAsyncError(comm, &state); code != pealSuccess) {
      state = code;
    }
    if (state != pealSuccess && state != pealInProgress) {
      return failure("communication", state);
    }
  }
  return {};
}

Result<void> Collectives::finish() {
  PEAL_TRY(record(end_));
  PEAL_TRY(wait(end_));
  if (device_->isHost()) {
    isIdle_ = true;
    return {};
  }
  const Clock::time_point began = Clock::now();
  const Result<void> finished = device_->finishCaller();
  const Clock::time_point ended = Clock::now();
  waitSeconds_ += std::chrono::duration<double>(ended - began).count();
  spans_.waited(lastIssued_, began, ended);
  PEAL_TRY(checked("waiting for communication", finished));
  isIdle_ = true;
  return checkComms();
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

// With a communicator on host memory beside the one on GPUs.
Result<Team> Collectives::split(const Team& from, int color, const char* name) {
  Team team;
  int rank = 0;
  const auto divide = [&](pealComm_t* made, int device) {
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.device = device;
    config.deterministic = 1;
    config.commName = name;
    const pealResult_t split = pealCommSplit(from.comm, color, rank, made, &config);
    if (split == pealSuccess) {
      comms_.push_back(*made);
    }
    return split;
  };
  pealResult_t code = pealCommUserRank(from.comm, &rank);
  if (code == pealSuccess) {
    code = divide(&team.comm, device_->number());
  }
  team.hostComm = team.comm;
  if (code == pealSuccess && !device_->isHost()) {
    team.hostComm = nullptr;
    code = divide(&team.hostComm, PEAL_DEVICE_HOST);
  }
  if (code != pealSuccess) {
    return Error{code, fmt::format("the engine's communicator \"{}\" cannot be made: {}", name,
                                   pealGetLastError(nullptr))};
  }
  if (code = pealCommUserRank(team.comm, &team.rank); code == pealSuccess) {
    code = pealCommCount(team.comm, &team.ranks);
  }
  if (code != pealSuccess) {
    return Error{code, fmt::format("the engine's communicator \"{}\" does not tell its size: {}", name,
                                   pealGetLastError(nullptr))};
  }
  return team;
}

Result<std::unique_ptr<Collectives>> Collectives::make(pealComm_t parent, int shardGroup) {
  std::unique_ptr<Collectives> made(new Collectives);
  int device = PEAL_DEVICE_HOST;
  if (const pealResult_t code = pealCommCuDevice(parent, &device); code != pealSuccess) {
    return Error{code, pealGetLastError(nullptr)};
  }
  Result<std::shared_ptr<Device>> queues =
      device == PEAL_DEVICE_HOST ? makeHostDevice() : makeCudaDevice(device);
  if (!queues) {
    return Error{queues.error().code,
                 fmt::format("the engine's stream cannot be made: {}", queues.error().message)};
  }
  made->device_ = std::move(*queues);
  PEAL_TRY(made->divide(parent, shardGroup));
  return made;
}

Result<void> Collectives::divide(pealComm_t parent, int shardGroup) {
  const auto take = [](Team& team, const Result<Team>& made) -> Result<void> {
    if (!made) {
      return made.error();
    }
    team = *made;
    return {};
  };
  PEAL_TRY(take(all_, split({.comm = parent}, 0, "zero")));
  group_ = all_;
  // A rank that wants other groups would split while others do not: they find that out first.
  std::array<int64_t, 2> wanted{shardGroup, -shardGroup};
  if (const pealResult_t code = pealAllReduce(wanted.data(), wanted.data(), wanted.size(), pealInt64, pealMax,
                                              all_.hostComm, nullptr);
      code != pealSuccess) {
    return failure("agreeing on the shard groups", code);
  }
  if (wanted[0] != -wanted[1]) {
    return Error{pealInvalidUsage,
                 fmt::format("the ranks passed different values of shardGroup, from {} to {}; rank {} passed "
                             "{}. All ranks pass the same",
                             -wanted[1], wanted[0], all_.rank, shardGroup)};
  }
  if (shardGroup > 0 && all_.ranks % shardGroup != 0) {
    return Error{pealInvalidArgument,
                 fmt::format("the engine's shardGroup is {}, which does not divide its {} ranks", shardGroup,
                             all_.ranks)};
  }
  if (shardGroup == 0 || shardGroup == all_.ranks) {
    return {};
  }
  PEAL_TRY(take(group_, split(all_, all_.rank / shardGroup, "zero-group")));
  return take(replicas_, split(all_, all_.rank % shardGroup, "zero-replicas"));
}

Collectives::~Collectives() {
  // Nobody is left to tell of errors here. Aborting first lets the stream's operations return at once.
  if (teardown_ == Teardown::Abort) {
    for (const pealComm_t comm : comms_) {
      (void)pealCommAbort(comm);
    }
  }
  if (device_ != nullptr) {
    device_->endStream();
  }
  if (teardown_ == Teardown::Finish) {
    std::for_each(comms_.rbegin(), comms_.rend(), [](pealComm_t comm) { (void)pealCommDestroy(comm); });
  }
}

Error Collectives::failure(const char* what, const Error& failed) {
  std::string sentence = failed.message;
  for (const pealComm_t comm : comms_) {
    sentence = sentence.empty() ? pealGetLastError(comm) : sentence;
  }
  if (sentence.empty()) {
    sentence = pealGetErrorString(failed.code);
  }
  Error error{failed.code,
              fmt::format("{} failed on rank {} of {}: {}", what, all_.rank, all_.ranks, sentence)};
  if (!broken_) {
    broken_ = error;
  }
  return error;
}

Result<void> Collectives::checked(const char* what, const Result<void>& result) {
  return result ? Result<void>() : Result<void>(failure(what, result.error()));
}

// ---- collectives
// --------------------------------------------------------------------------------------------

// Queues a collective between two readings of the clock. On GPUs the clock is read for a trace only: a host
// function holds up a CUDA stream.
template <class Call>
Result<void> Collectives::issue(Purpose purpose, const char* what, uint64_t elementsSent, pealDataType_t type,
                                Call call, Count count, Data data) {
  const Operation operation = operationOf(purpose.counter);
  const bool isOnStream = !isOfHost(data);
  const Clock::time_point began = isOnStream ? Clock::time_point() : Clock::now();
  if (isOnStream) {
    PEAL_TRY(checked("ordering the engine's stream", device_->streamAfterCaller()));
    PEAL_TRY(queueBefore(operation));
  } else {
    begin(operation);
  }
  const bool isTimed = isOnStream && (device_->isHost() || spans_.isOn());
  if (isTimed) {
    PEAL_TRY(queue([](void* clock) { static_cast<StreamClock*>(clock)->began = Clock::now(); }, &clock_));
  }
  isIdle_ = false;
  if (const pealResult_t code = call(); code != pealSuccess) {
    return failure(what, code);
  }
  const uint64_t bytes = elementsSent * elementBytes(type);
  counters_.calls[purpose.counter] += count == Count::Call ? 1 : 0;
  counters_.elementsSent[purpose.counter] += elementsSent;
  counters_.bytesSent[purpose.counter] += bytes;
  if (!isOnStream) {
    waitSeconds_ += std::chrono::duration<double>(Clock::now() - began).count();
    return {};
  }
  lastIssued_ = purpose;
  return isTimed ? stopClock(purpose, bytes) : Result<void>();
}

Result<void> Collectives::stopClock(Purpose purpose, uint64_t bytes) {
  PEAL_TRY(queue(
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
  return queue(SpanLog::end, spans_.issued(purpose, bytes, clock_));
}

Result<void> Collectives::run(void (*task)(void*), void* argument) {
  PEAL_TRY(queueBefore(Operation::Sum));
  return queue(task, argument);
}

Result<void> Collectives::queueBefore(Operation operation) {
  if (before_ == nullptr) {
    return {};
  }
  return queue(
      [](void* argument) {
        const auto& hook = *static_cast<const Hook*>(argument);
        hook.before(hook.user, hook.operation);
      },
      &hooks_[static_cast<size_t>(operation)]);
}

Result<void> Collectives::setBefore(BeforeOperation before, void* user) {
  PEAL_TRY(finish());
  for (int operation = 0; operation < kOperations; ++operation) {
    hooks_[static_cast<size_t>(operation)] = {before, user, static_cast<Operation>(operation)};
  }
  before_ = before;
  return {};
}

Result<void> Collectives::queue(void (*task)(void*), void* argument) {
  return checked("queueing on the engine's stream", device_->run(task, argument));
}

Result<void> Collectives::run(const Pass& pass) {
  PEAL_TRY(queueBefore(Operation::Sum));
  return checked("queueing on the engine's stream", device_->pass(Queue::Stream, pass));
}

// Of gradients in two shots, whatever their size: that is what the formulas count. Left to itself a short
// all-reduce goes in one shot and sends N/2 times as much; so does that of the control block, which is
// shorter than any threshold.
Result<void> Collectives::allReduceGradients(Purpose purpose, void* buffer, size_t count,
                                             pealDataType_t type) {
  const uint64_t own = shardElements(count, all_.ranks, all_.rank);
  const uint64_t sent = count - own + own * static_cast<uint64_t>(all_.ranks - 1);
  return issue(purpose, "all-reduce", sent, type, [&] {
    pealResult_t code = pealCommForceAlgorithm(all_.comm, "two_shot");
    if (code == pealSuccess) {
      code = pealAllReduce(buffer, buffer, count, type, pealSum, all_.comm, device_->stream());
    }
    const pealResult_t released = pealCommForceAlgorithm(all_.comm, nullptr);
    return code != pealSuccess ? code : released;
  });
}

Result<void> Collectives::allReduceControl(int64_t* numbers, size_t count) {
  const uint64_t sent = count * static_cast<uint64_t>(all_.ranks - 1);
  const auto call = [&] {
    return pealAllReduce(numbers, numbers, count, pealInt64, pealSum, commOf(all_, Data::Host),
                         streamOf(Data::Host));
  };
  return issue(pealZeroControl, "all-reduce", sent, pealInt64, call, Count::Call, Data::Host);
}

Result<void> Collectives::reduceScatter(Purpose purpose, const void* from, void* to,
                                        std::span<const size_t> counts, pealDataType_t type) {
  return issue(purpose, "reduce-scatter", othersElements(counts, group_.rank), type, [&] {
    return pealReduceScatterV(from, to, counts.data(), type, pealSum, group_.comm, device_->stream());
  });
}

Result<void> Collectives::allGather(Among among, Purpose purpose, const void* from, void* to,
                                    std::span<const size_t> counts, pealDataType_t type, Data data) {
  const Team& ranks = team(among);
  const uint64_t sent = counts[static_cast<size_t>(ranks.rank)] * static_cast<uint64_t>(ranks.ranks - 1);
  const auto call = [&] {
    return pealAllGatherV(from, to, counts.data(), type, commOf(ranks, data), streamOf(data));
  };
  return issue(purpose, "all-gather", sent, type, call, Count::Call, data);
}

// A fused step is counted as the two collectives that it is.
template <class Call>
Result<void> Collectives::issueFused(int64_t index, std::span<const size_t> counts, pealDataType_t type,
                                     Call call) {
  const uint64_t reduced = othersElements(counts, group_.rank);
  const uint64_t gathered =
      counts[static_cast<size_t>(group_.rank)] * static_cast<uint64_t>(group_.ranks - 1);
  PEAL_TRY(issue({pealZeroFused, index}, "the fused step", reduced + gathered, type, call));
  const auto count = [&](int counter, uint64_t calls, uint64_t elements) {
    counters_.calls[counter] += calls;
    counters_.elementsSent[counter] += elements;
    counters_.bytesSent[counter] += elements * elementBytes(type);
  };
  count(pealZeroReduceScatter, 1, reduced);
  count(pealZeroAllGather, 1, gathered);
  counters_.elementsSent[pealZeroFused] = counters_.bytesSent[pealZeroFused] = 0;  // they are counted there
  return {};
}

Result<void> Collectives::reduceApplyGather(int64_t index, const void* from, void* to,
                                            std::span<const size_t> counts, pealDataType_t type,
                                            pealApply_t apply, void* user) {
  return issueFused(index, counts, type, [&] {
    return pealReduceApplyGather(from, to, counts.data(), type, apply, user, group_.comm, device_->stream());
  });
}

Result<void> Collectives::reduceAdamwGather(int64_t index, const void* from, void* to,
                                            std::span<const size_t> counts, const pealAdamw_t& state) {
  return issueFused(index, counts, pealBfloat16, [&] {
    return pealReduceAdamwGather(from, to, counts.data(), &state, group_.comm, device_->stream());
  });
}

Result<void> Collectives::broadcastFromZero(Purpose purpose, void* buffer, size_t count,
                                            pealDataType_t type) {
  const uint64_t sent = all_.rank == 0 ? count * static_cast<uint64_t>(all_.ranks - 1) : 0;
  const auto call = [&] {
    return pealBcast(buffer, count, type, 0, commOf(all_, Data::Host), streamOf(Data::Host));
  };
  return issue(purpose, "broadcast", sent, type, call, Count::Call, Data::Host);
}

// ---- groups and replicas
// ------------------------------------------------------------------------------------

Result<void> Collectives::exchangeBlocks(Purpose purpose, Elements from, Elements to,
                                         std::span<const size_t> counts) {
  const pealDataType_t type = typeOf(from.precision);
  const auto exchange = [&]() -> pealResult_t {
    pealResult_t code = pealGroupStart();
    const size_t own = counts[static_cast<size_t>(group_.rank)];
    for (int peer = 0; peer < group_.ranks && code == pealSuccess; ++peer) {
      const size_t theirs = counts[static_cast<size_t>(peer)];
      if (peer != group_.rank && theirs > 0) {
        code = pealSend(from.data, theirs, type, peer, group_.comm, device_->stream());
      }
      if (peer != group_.rank && own > 0 && code == pealSuccess) {
        code = pealRecv(to.data, own, type, peer, group_.comm, device_->stream());
        to = to.at(own);
      }
      from = from.at(theirs);
    }
    const pealResult_t ended = pealGroupEnd();
    return code != pealSuccess ? code : ended;
  };
  return issue(purpose, "exchanging gradients", othersElements(counts, group_.rank), type, exchange);
}

Result<void> Collectives::receiveFromReplicaBefore(Purpose purpose, float* to, size_t count) {
  return issue(
      purpose, "receiving sums of the replicas before", 0, pealFloat32,
      [&] { return pealRecv(to, count, pealFloat32, replicas_.rank - 1, replicas_.comm, device_->stream()); },
      Count::Part);
}

Result<void> Collectives::sendToReplicaAfter(Purpose purpose, const float* from, size_t count) {
  return issue(
      purpose, "sending sums to the replica after", count, pealFloat32,
      [&] {
        return pealSend(from, count, pealFloat32, replicas_.rank + 1, replicas_.comm, device_->stream());
      },
      Count::Part);
}

Result<void> Collectives::broadcastFromLastReplica(Purpose purpose, Elements buffer, size_t count) {
  const pealDataType_t type = typeOf(buffer.precision);
  const int last = replicas_.ranks - 1;
  const uint64_t sent = replicas_.rank == last ? count * static_cast<uint64_t>(last) : 0;
  return issue(purpose, "broadcast of reduced gradients", sent, type,
               [&] { return pealBcast(buffer.data, count, type, last, replicas_.comm, device_->stream()); });
}

double Collectives::communicationSeconds() const {
  return 1e-9 * static_cast<double>(clock_.nanoseconds.load(std::memory_order_relaxed));
}

}  // namespace peal::zero

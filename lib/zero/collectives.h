// The engine's communication: its own communicators (sums in rank order), one stream on which all its
// collectives run in the order of issue, marks in that stream, counters and clocks.
//
// N ranks are N/G shard groups of G consecutive ranks; rank g of every group is a replica of the others'.
// With one group that is the communicator of all ranks, and there are no replicas.
//
// The caller's thread issues, the stream runs. Every edge from the stream to the caller's queue (device.h) is
// a Mark: results may be used only after wait(), by what is then in the caller's queue. In the other
// direction every collective waits for what is in the caller's queue when it is issued. Knows no stage and no
// bucket.
//
// On GPUs data of the host (agreements, the control message) travel over communicators of their own on host
// memory, which run to their end on the calling thread.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/result.h"
#include "lib/zero/device.h"
#include "lib/zero/elements.h"
#include "lib/zero/operations.h"
#include "lib/zero/spans.h"
#include "peal/adamw.h"
#include "peal/zero.h"

namespace peal::zero {

// A place in the stream. Recorded again and again; waiting for one never recorded is no wait.
class Mark {
 public:
  Mark() = default;
  Mark(Mark&& other) noexcept;
  Mark& operator=(Mark&&) = delete;

 private:
  friend class Collectives;
  std::unique_ptr<StreamEvent> event_;  // made at the first record
  bool pending_ = false;                // recorded and not yet waited for
  Purpose after_ = pealZeroStart;       // the last collective before it
};

enum class Teardown { Finish, Abort };

// Ranks that communicate, and this one among them.
struct Team {
  pealComm_t comm = nullptr;
  pealComm_t hostComm = nullptr;  // for Data::Host; on host memory comm again
  int ranks = 1, rank = 0;
};
enum class Among { All, Group };
// Where the buffers of a collective are: arenas', or the host's whatever the engine's device is.
enum class Data { Arena, Host };

class Collectives {
 public:
  // Stands behind what a call lends to its collectives: its own vectors, or an array of its caller. If the
  // call ends before finish() has succeeded, by an error or an exception, nothing that is queued uses it any
  // more.
  class Lending {
   public:
    explicit Lending(Collectives& to) : to_(to) {}
    ~Lending() {
      if (!to_.isIdle_) {
        to_.device_->settle();
      }
    }
    Lending(const Lending&) = delete;
    Lending& operator=(const Lending&) = delete;

   private:
    Collectives& to_;
  };

  // Collective over parent. shardGroup: G; 0: all ranks.
  static Result<std::unique_ptr<Collectives>> make(pealComm_t parent, int shardGroup);
  // Finish: what is queued runs first. Abort: it is given up, and the other ranks get an error.
  ~Collectives();
  void setTeardown(Teardown teardown) { teardown_ = teardown; }

  const std::shared_ptr<Device>& device() const { return device_; }
  int ranks() const { return all_.ranks; }
  int rank() const { return all_.rank; }
  pealComm_t comm() const { return all_.comm; }
  // Of all teams, in the order in which they were made.
  const std::vector<pealComm_t>& comms() const { return comms_; }
  // The shard group, whose ranks divide the elements.
  int shards() const { return group_.ranks; }
  int shard() const { return group_.rank; }
  // The ranks that own the same elements, one of each group.
  int replicas() const { return replicas_.ranks; }
  int replica() const { return replicas_.rank; }

  // purpose: the counter, and which bucket or unit it is for. Buffers belong to the call until a later mark
  // is passed; counts are copied. In place where peal.h says so.
  Result<void> allReduceGradients(Purpose purpose, void* buffer, size_t count, pealDataType_t type);
  Result<void> allReduceControl(int64_t* numbers, size_t count);
  // Of the shard group.
  Result<void> reduceScatter(Purpose purpose, const void* from, void* to, std::span<const size_t> counts,
                             pealDataType_t type);
  Result<void> allGather(Among among, Purpose purpose, const void* from, void* to,
                         std::span<const size_t> counts, pealDataType_t type, Data data = Data::Arena);
  // All three as one, on host memory: a reduce-scatter, apply on this rank's block, an all-gather; counted as
  // the two collectives that it is, under pealZeroFused too. index: as in a purpose.
  Result<void> reduceApplyGather(int64_t index, const void* from, void* to, std::span<const size_t> counts,
                                 pealDataType_t type, pealApply_t apply, void* user);
  // The same on GPUs, with AdamW: state is that of this rank's block.
  Result<void> reduceAdamwGather(int64_t index, const void* from, void* to, std::span<const size_t> counts,
                                 const pealAdamw_t& state);
  // A reduce-scatter without its sum, in the shard group: `to` gets the other ranks' parts of this
  // rank's block, one after another in rank order.
  Result<void> exchangeBlocks(Purpose purpose, Elements from, Elements to, std::span<const size_t> counts);
  // Between replicas: from the one before, to the one after, and from the last to all.
  Result<void> receiveFromReplicaBefore(Purpose purpose, float* to, size_t count);
  Result<void> sendToReplicaAfter(Purpose purpose, const float* from, size_t count);
  Result<void> broadcastFromLastReplica(Purpose purpose, Elements buffer, size_t count);
  // Of the host's data.
  Result<void> broadcastFromZero(Purpose purpose, void* buffer, size_t count, pealDataType_t type);
  // Runs task(argument) on the stream: a pass over gradients on host memory.
  Result<void> run(void (*task)(void*), void* argument);
  // The same of a pass over arenas.
  Result<void> run(const Pass& pass);

  Result<void> record(Mark& mark);
  // What is in the caller's queue afterwards comes after the mark; on host memory that is to wait.
  Result<void> wait(Mark& mark);
  // Waits on this thread for all that is queued.
  Result<void> finish();

  const pealZeroCounters_t& counters() const { return counters_; }
  double communicationSeconds() const;  // on the stream, in collectives, so far
  double waitSeconds() const { return waitSeconds_; }
  // Ends an earlier trace, after what is queued, and begins another; nullptr: none.
  Result<void> setTrace(pealZeroTrace_t callback, void* user);
  // Waits for what is queued. before: nullptr: none.
  Result<void> setBefore(BeforeOperation before, void* user);
  // Of an operation that runs on the caller's thread.
  void begin(Operation operation) {
    if (before_ != nullptr) {
      before_(hooks_.front().user, operation);
    }
  }
  // The first failure: the ranks are no longer in step.
  const std::optional<Error>& broken() const { return broken_; }
  // Makes this rank's failure of what cannot fail on host memory the first failure.
  Result<void> checked(const char* what, const Result<void>& result);

 private:
  Collectives() = default;
  // A part of a collective that takes several operations is not a call of its own.
  enum class Count { Call, Part };
  template <class Call>
  Result<void> issueFused(int64_t index, std::span<const size_t> counts, pealDataType_t type, Call call);
  template <class Call>
  Result<void> issue(Purpose purpose, const char* what, uint64_t elementsSent, pealDataType_t type, Call call,
                     Count count = Count::Call, Data data = Data::Arena);
  Result<void> queue(void (*task)(void*), void* argument);
  Result<void> queueBefore(Operation operation);
  Error failure(const char* what, const Error& error);
  Error failure(const char* what, pealResult_t code) { return failure(what, Error{code, ""}); }
  Result<void> checkComms();
  Result<void> stopClock(Purpose purpose, uint64_t bytes);
  Result<void> divide(pealComm_t parent, int shardGroup);
  Result<Team> split(const Team& from, int color, const char* name);
  const Team& team(Among among) const { return among == Among::All ? all_ : group_; }
  // Of data that is the host's: where calls of peal go.
  bool isOfHost(Data data) const { return data == Data::Host && !device_->isHost(); }
  pealComm_t commOf(const Team& of, Data data) const { return isOfHost(data) ? of.hostComm : of.comm; }
  pealStream_t streamOf(Data data) const { return isOfHost(data) ? nullptr : device_->stream(); }

  Team all_;
  Team group_;                     // all_ if there is one
  Team replicas_;                  // without a communicator if there is one group
  std::vector<pealComm_t> comms_;  // of these teams, in the order in which they were made
  std::shared_ptr<Device> device_;
  Teardown teardown_ = Teardown::Finish;
  pealZeroCounters_t counters_{};
  double waitSeconds_ = 0;
  SpanLog spans_;
  // What the stream's worker calls for each kind of operation, if before_ is set. Changed when it is idle.
  struct Hook {
    BeforeOperation before;
    void* user;
    Operation operation;
  };
  BeforeOperation before_ = nullptr;
  std::array<Hook, kOperations> hooks_{};
  Purpose lastIssued_ = pealZeroStart;
  Mark end_;
  bool isIdle_ = true;  // nothing was queued since finish()
  std::optional<Error> broken_;

  StreamClock clock_;
};

}  // namespace peal::zero

// C entry points: the fused optimizer step (peal/adamw.h).
#include "peal/adamw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "lib/api/api.h"
#include "lib/comm/group.h"
#include "lib/executor/device_executor.h"
#include "lib/zero/loops.h"

using namespace peal;
using namespace peal::api;

namespace {

Error wrong(const char* function, const std::string& what) {
  return {pealInvalidArgument, fmt::format("{}: {}", function, what)};
}

bool isAligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// What can be told without reading memory, which may be a GPU's.
Result<void> checkState(const char* function, const void* gradient, const void* weight,
                        const pealAdamw_t* state) {
  if (state == nullptr) {
    return nullArgument(function, "state");
  }
  if (state->control == nullptr) {
    return nullArgument(function, "state->control");
  }
  const auto isRate = [](double beta) { return beta >= 0 && beta < 1; };
  if (!isRate(state->beta1) || !isRate(state->beta2) || !(state->epsilon >= kLeastEpsilon)) {
    return wrong(function, fmt::format("beta1 is {}, beta2 {} and epsilon {}; betas are at least 0 and below "
                                       "1, epsilon is at least {}.",
                                       state->beta1, state->beta2, state->epsilon, kLeastEpsilon));
  }
  if (state->segmentCount > 0 && state->segments == nullptr) {
    return wrong(function, fmt::format("segments is NULL and segmentCount is {}.", state->segmentCount));
  }
  for (const uint64_t count : {state->count, state->segmentCount}) {
    if (count > std::numeric_limits<size_t>::max() / 16) {
      return wrong(function, fmt::format("count is {} and segmentCount {}: more than the address space.",
                                         state->count, state->segmentCount));
    }
  }
  const struct {
    const char* name;
    const void* data;
    size_t alignment;
  } arrays[] = {{"gradient", gradient, 2},
                {"weight", weight, 2},
                {"state->master", state->master, 4},
                {"state->moment1", state->moment1, 4},
                {"state->moment2", state->moment2, 4},
                {"state->segments", state->segments, 8},
                {"state->control", state->control, 8}};
  for (const auto& array : arrays) {
    if (array.data == nullptr && array.alignment < 8 && state->count > 0) {
      return wrong(function,
                   fmt::format("{} is NULL and {} elements are to be updated.", array.name, state->count));
    }
    if (!isAligned(array.data, array.alignment)) {
      return wrong(function, fmt::format("{} is {}, which is not a multiple of {}.", array.name, array.data,
                                         array.alignment));
    }
  }
  if (!isAligned(state->reduced, 2)) {
    return wrong(function,
                 fmt::format("state->reduced is {}, which is not a multiple of 2.", state->reduced));
  }
  return {};
}

Result<void> checkSegments(const char* function, const pealAdamw_t& state) {
  uint64_t end = 0;
  for (uint64_t i = 0; i < state.segmentCount; ++i) {
    if (state.segments[i].end < end) {
      return wrong(function, fmt::format("segments[{}].end is {}, below the {} of the one before.", i,
                                         state.segments[i].end, end));
    }
    end = state.segments[i].end;
  }
  if (state.segmentCount > 0 && end < state.count) {
    return wrong(function,
                 fmt::format("the last segment ends at {} and the shard has {} elements.", end, state.count));
  }
  return {};
}

// One update on host memory, whole or piece by piece; the epilogue of the fused step. Reads the control block
// when the step begins.
class HostStep final : public HostEpilogue {
 public:
  explicit HostStep(const pealAdamw_t& state, size_t shardStart = 0)
      : state_(state), shardStart_(shardStart), whole_{state.count, 0} {}

  uint8_t digestOp() const override { return Digest::kAdamw; }
  bool begin() override {
    const pealAdamwControl_t& control = *state_.control;
    skips_ = control.nonFinite != 0;
    learningRate_ = control.learningRate;
    step_ = control.step + 1;
    scalars_ = adamwScalars({state_.beta1, state_.beta2, state_.epsilon, 0}, learningRate_, step_,
                            control.gradientScale);
    return !skips_;
  }
  void apply(std::byte* values, Chunk c) override {
    auto* const elements = reinterpret_cast<uint16_t*>(values);
    const uint64_t first = c.offset - shardStart_;
    if (state_.reduced != nullptr) {
      std::memcpy(static_cast<uint16_t*>(state_.reduced) + first, values, c.count * sizeof(uint16_t));
    }
    update(elements, elements, first, c.count);
  }
  // Elements [first, first + count) of the shard; gradient and weight are the first one's.
  void update(const uint16_t* gradient, uint16_t* weight, uint64_t first, uint64_t count) {
    const std::span segments(state_.segmentCount > 0 ? state_.segments : &whole_,
                             state_.segmentCount > 0 ? state_.segmentCount : 1);
    auto segment = std::upper_bound(
        segments.begin(), segments.end(), first,
        [](uint64_t element, const pealAdamwSegment_t& candidate) { return element < candidate.end; });
    const uint64_t last = first + count;
    for (uint64_t begin = first; begin < last; ++segment) {
      const uint64_t end = std::min(segment->end, last);
      scalars_.decayFactor = adamwDecayFactor(learningRate_, segment->weightDecay);
      const zero::AdamwArgs args{gradient + (begin - first), state_.master + begin,    state_.moment1 + begin,
                                 state_.moment2 + begin,     weight + (begin - first), end - begin};
      if (state_.stochasticRounding != 0) {
        zero::loops().adamwStochastic(scalars_, args, {state_.seed, step_, state_.firstIndex + begin});
      } else {
        zero::loops().adamw(scalars_, args);
      }
      begin = end;
    }
  }
  // All of it is done.
  void end() {
    if (!skips_) {
      state_.control->step = step_;
    }
  }

 private:
  const pealAdamw_t state_;
  const size_t shardStart_;  // where the shard begins in the collective's array
  const pealAdamwSegment_t whole_;
  AdamwScalars scalars_{};
  double learningRate_ = 0;
  uint64_t step_ = 0;
  bool skips_ = true;
};

}  // namespace

pealResult_t pealAdamwStep(const void* gradient, void* weight, const pealAdamw_t* state, int device,
                           pealStream_t stream) {
  return guarded([&]() -> Result<void> {
    constexpr const char* kName = "pealAdamwStep";
    PEAL_TRY(checkState(kName, gradient, weight, state));
    if (device != PEAL_DEVICE_HOST) {
      PEAL_TRY(checkDevice(device));
    }
    Result<StreamRef> target = streamOn(kName, device, stream);
    if (!target) {
      return target.error();
    }
    if (device != PEAL_DEVICE_HOST) {
      return launchAdamw(device, *state, gradient, weight, target->cuda);
    }
    PEAL_TRY(checkSegments(kName, *state));
    const auto run = [copy = *state, from = static_cast<const uint16_t*>(gradient),
                      to = static_cast<uint16_t*>(weight)]() -> Result<void> {
      HostStep step(copy);
      if (step.begin()) {
        step.update(from, to, 0, copy.count);
        step.end();
      }
      return {};
    };
    if (target->host == nullptr) {
      return run();
    }
    target->host->enqueue(run);
    return {};
  });
}

namespace {

// The blocks of the fused step: their sum, and what lies before this rank's.
struct Shares {
  size_t total, before;
};

Result<Shares> sharesOf(const char* function, const size_t counts[], const Communicator& comm) {
  Shares shares{0, 0};
  for (int rank = 0; rank < comm.size(); ++rank) {
    const size_t count = counts[rank];
    if (count > std::numeric_limits<size_t>::max() / 16 - shares.total) {
      return wrong(function,
                   fmt::format("counts[{}] is {}: the sum is more than the address space.", rank, count));
    }
    shares.before += rank < comm.rank() ? count : 0;
    shares.total += count;
  }
  return shares;
}

// Two arrays of all blocks.
struct Arrays {
  const char* inputName;
  const void* input;
  const char* resultName;
  const void* result;
  size_t count, elementBytes;
  bool mayBeTheSame;
};

Result<void> checkArrays(const char* function, const Arrays& arrays) {
  const auto* from = static_cast<const std::byte*>(arrays.input);
  const auto* to = static_cast<const std::byte*>(arrays.result);
  if (arrays.count > 0 && (from == nullptr || to == nullptr)) {
    return wrong(function, fmt::format("{} is NULL and the blocks have {} elements.",
                                       from == nullptr ? arrays.inputName : arrays.resultName, arrays.count));
  }
  const size_t bytes = arrays.count * arrays.elementBytes;
  const bool isSame = from == to && arrays.mayBeTheSame;
  if (!isSame && from < to + bytes && to < from + bytes) {
    return wrong(function, fmt::format("{} ({} bytes at {}) and {} (at {}) overlap{}.", arrays.inputName,
                                       bytes, arrays.input, arrays.resultName, arrays.result,
                                       arrays.mayBeTheSame ? " without being the same array" : ""));
  }
  return {};
}

// The caller's function as an epilogue.
class CallersEpilogue final : public HostEpilogue {
 public:
  CallersEpilogue(pealApply_t function, void* user, size_t shardStart)
      : function_(function), user_(user), shardStart_(shardStart) {}
  uint8_t digestOp() const override { return Digest::kApply; }
  bool begin() override { return true; }
  void apply(std::byte* values, Chunk c) override {
    function_(user_, values, c.offset - shardStart_, c.count);
  }
  void end() {}

 private:
  const pealApply_t function_;
  void* const user_;
  const size_t shardStart_;
};

// On host memory: one collective, with its place in the order taken now.
template <class Step>
Result<void> runOnHost(pealComm& handle, HostStream* stream, const CollectiveCall& call,
                       const std::shared_ptr<Step>& step) {
  const std::shared_ptr<Communicator>& comm = handle.comm;
  Result<Communicator::Prepared> prepared = comm->prepare(call, *step);
  if (!prepared) {
    return prepared.error();
  }
  auto issued = std::make_shared<Communicator::Prepared>(std::move(*prepared));
  const auto run = [comm, issued, step]() -> Result<void> {
    Result<void> done = comm->run(*issued);
    if (done) {
      step->end();
    }
    return done;
  };
  if (stream != nullptr) {
    stream->enqueue(run);
    return {};
  }
  return run();
}

// The all-reduce under a fused step: sums, one block per rank.
CollectiveCall sumInBlocks(const pealComm& comm, const void* send, void* recv, const size_t counts[],
                           pealDataType_t type) {
  CollectiveCall call;
  call.kind = pealStatAllReduce;
  call.send = send;
  call.recv = recv;
  call.counts.assign(counts, counts + comm.comm->size());
  call.type = type;
  call.hasOp = true;
  return call;
}

}  // namespace

pealResult_t pealReduceAdamwGather(const void* gradients, void* weights, const size_t counts[],
                                   const pealAdamw_t* state, pealComm_t comm, pealStream_t stream) {
  return guarded([&]() -> Result<void> {
    constexpr const char* kName = "pealReduceAdamwGather";
    PEAL_TRY(checkComm(kName, comm));
    if (counts == nullptr) {
      return nullArgument(kName, "counts");
    }
    if (Group::ofThisThread().active()) {
      return Error{pealInvalidUsage, fmt::format("{} on {}: not inside a group.", kName, comm->comm->name())};
    }
    Result<StreamRef> target = streamFor(kName, *comm, stream);
    if (!target) {
      return target.error();
    }
    // The step works on this rank's block of `weights`.
    PEAL_TRY(checkState(kName, gradients, weights, state));
    const Result<Shares> shares = sharesOf(kName, counts, *comm->comm);
    if (!shares) {
      return shares.error();
    }
    if (const size_t own = counts[comm->comm->rank()]; state->count != own) {
      return wrong(kName, fmt::format("state->count is {} on rank {}, whose block has {} elements.",
                                      state->count, comm->comm->rank(), own));
    }
    PEAL_TRY(checkArrays(
        kName, {"gradients", gradients, "weights", weights, shares->total, sizeof(uint16_t), true}));
    const CollectiveCall call = sumInBlocks(*comm, gradients, weights, counts, pealBfloat16);
    const CommUse use(*comm);
    if (comm->comm->onDevice()) {
      return comm->comm->issueOnDevice(call, *state, target->cuda);
    }
    PEAL_TRY(checkSegments(kName, *state));
    return runOnHost(*comm, target->host.get(), call, std::make_shared<HostStep>(*state, shares->before));
  });
}

pealResult_t pealReduceApplyGather(const void* inputs, void* results, const size_t counts[],
                                   pealDataType_t type, pealApply_t apply, void* user, pealComm_t comm,
                                   pealStream_t stream) {
  return guarded([&]() -> Result<void> {
    constexpr const char* kName = "pealReduceApplyGather";
    PEAL_TRY(checkComm(kName, comm));
    if (counts == nullptr || apply == nullptr) {
      return nullArgument(kName, counts == nullptr ? "counts" : "apply");
    }
    if (Group::ofThisThread().active()) {
      return Error{pealInvalidUsage, fmt::format("{} on {}: not inside a group.", kName, comm->comm->name())};
    }
    if (comm->comm->onDevice()) {
      return Error{pealInvalidUsage,
                   fmt::format("{} on {}: the communicator is on a GPU, which cannot call a function of the "
                               "host between two messages; use pealReduceAdamwGather.",
                               kName, comm->comm->name())};
    }
    Result<StreamRef> target = streamFor(kName, *comm, stream);
    if (!target) {
      return target.error();
    }
    if (type < 0 || type >= pealNumTypes) {
      return wrong(kName, fmt::format("there is no data type {}.", static_cast<int>(type)));
    }
    const Result<Shares> shares = sharesOf(kName, counts, *comm->comm);
    if (!shares) {
      return shares.error();
    }
    PEAL_TRY(
        checkArrays(kName, {"inputs", inputs, "results", results, shares->total, elementBytes(type), false}));
    const CollectiveCall call = sumInBlocks(*comm, inputs, results, counts, type);
    const CommUse use(*comm);
    return runOnHost(*comm, target->host.get(), call,
                     std::make_shared<CallersEpilogue>(apply, user, shares->before));
  });
}

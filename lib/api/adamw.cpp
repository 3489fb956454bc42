// C entry points: the fused optimizer step (peal/adamw.h).
#include "peal/adamw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
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
  if (!isRate(state->beta1) || !isRate(state->beta2) || !(state->epsilon >= 0)) {
    return wrong(function, fmt::format("beta1 is {}, beta2 {} and epsilon {}; betas are at least 0 and below "
                                       "1, epsilon is at least 0.",
                                       state->beta1, state->beta2, state->epsilon));
  }
  if (state->segmentCount > 0 && state->segments == nullptr) {
    return wrong(function, fmt::format("segments is NULL and segmentCount is {}.", state->segmentCount));
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

// On host memory. The control block is read now, when the step runs.
void stepOnHost(const pealAdamw_t& state, const uint16_t* gradient, uint16_t* weight) {
  pealAdamwControl_t& control = *state.control;
  if (control.nonFinite != 0) {
    return;
  }
  const uint64_t step = control.step + 1;
  AdamwScalars scalars = adamwScalars({state.beta1, state.beta2, state.epsilon, 0}, control.learningRate,
                                      step, control.gradientScale);
  const pealAdamwSegment_t whole{state.count, 0};
  const pealAdamwSegment_t* segments = state.segmentCount > 0 ? state.segments : &whole;
  uint64_t begin = 0;
  for (uint64_t i = 0; begin < state.count; ++i) {
    const uint64_t end = std::min(segments[i].end, state.count);
    scalars.decayFactor = adamwDecayFactor(control.learningRate, segments[i].weightDecay);
    const zero::AdamwArgs args{gradient + begin,      state.master + begin, state.moment1 + begin,
                               state.moment2 + begin, weight + begin,       end - begin};
    if (state.stochasticRounding != 0) {
      zero::loops().adamwStochastic(scalars, args, {state.seed, step, state.firstIndex + begin});
    } else {
      zero::loops().adamw(scalars, args);
    }
    begin = end;
  }
  control.step = step;
}

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
      stepOnHost(copy, from, to);
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

Result<Shares> sharesOf(const char* function, const size_t counts[], const pealAdamw_t& state,
                        const Communicator& comm) {
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
  if (state.count != counts[comm.rank()]) {
    return wrong(function, fmt::format("state->count is {} on rank {}, whose block has {} elements.",
                                       state.count, comm.rank(), counts[comm.rank()]));
  }
  return shares;
}

Result<void> checkArrays(const char* function, const void* gradients, const void* weights, size_t count) {
  const auto* from = static_cast<const std::byte*>(gradients);
  const auto* to = static_cast<const std::byte*>(weights);
  if (count > 0 && (from == nullptr || to == nullptr)) {
    return wrong(function, fmt::format("{} is NULL and the blocks have {} elements.",
                                       from == nullptr ? "gradients" : "weights", count));
  }
  if (from != to && from < to + 2 * count && to < from + 2 * count) {
    return wrong(function, fmt::format("gradients ({} bytes at {}) and weights (at {}) overlap without being "
                                       "the same array.",
                                       2 * count, gradients, weights));
  }
  return {};
}

CollectiveCall bf16Call(int kind, const void* send, void* recv, std::vector<size_t> counts) {
  CollectiveCall call;
  call.kind = kind;
  call.send = send;
  call.recv = recv;
  call.counts = std::move(counts);
  call.type = pealBfloat16;
  call.hasOp = kind != pealStatAllGather;
  return call;
}

// On host memory: three steps, with their places in the order taken now.
Result<void> reduceStepGather(pealComm& handle, HostStream* stream, const void* gradients, void* weights,
                              const std::vector<size_t>& counts, const pealAdamw_t& state, size_t before) {
  const std::shared_ptr<Communicator>& comm = handle.comm;
  auto* own = static_cast<uint16_t*>(weights) + before;
  Result<Communicator::Prepared> scatter =
      comm->prepare(bf16Call(pealStatReduceScatter, gradients, own, counts));
  if (!scatter) {
    return scatter.error();
  }
  Result<Communicator::Prepared> gather = comm->prepare(bf16Call(pealStatAllGather, own, weights, counts));
  if (!gather) {
    return gather.error();
  }
  auto calls = std::make_shared<std::array<Communicator::Prepared, 2>>(
      std::array<Communicator::Prepared, 2>{std::move(*scatter), std::move(*gather)});
  const auto run = [comm, calls, state, own]() -> Result<void> {
    Result<void> reduced = comm->run((*calls)[0]);
    if (reduced) {
      stepOnHost(state, own, own);
    }
    Result<void> gathered = comm->run((*calls)[1]);  // in any case: the places behind it wait
    return reduced ? gathered : reduced;
  };
  if (stream != nullptr) {
    stream->enqueue(run);
    return {};
  }
  return run();
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
    const Result<Shares> shares = sharesOf(kName, counts, *state, *comm->comm);
    if (!shares) {
      return shares.error();
    }
    PEAL_TRY(checkArrays(kName, gradients, weights, shares->total));
    const std::vector<size_t> blocks(counts, counts + comm->comm->size());
    const CommUse use(*comm);
    if (comm->comm->onDevice()) {
      return comm->comm->issueOnDevice(bf16Call(pealStatAllReduce, gradients, weights, blocks), *state,
                                       target->cuda);
    }
    PEAL_TRY(checkSegments(kName, *state));
    return reduceStepGather(*comm, target->host.get(), gradients, weights, blocks, *state, shares->before);
  });
}

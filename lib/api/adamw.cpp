// C entry points: the fused optimizer step (peal/adamw.h).
#include "peal/adamw.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lib/api/api.h"
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
      return launchAdamw(device, *state, gradient, weight, stream);
    }
    PEAL_TRY(checkSegments(kName, *state));
    const auto run = [copy = *state, from = static_cast<const uint16_t*>(gradient),
                      to = static_cast<uint16_t*>(weight)]() -> Result<void> {
      stepOnHost(copy, from, to);
      return {};
    };
    if (stream == nullptr) {
      return run();
    }
    PEAL_TRY(checkStream(kName, stream));
    stream->stream->enqueue(run);
    return {};
  });
}

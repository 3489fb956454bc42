// AdamW by one block over a range of a flat shard: the loop of the kernel in adamw.cu, and the epilogue of
// the fused collective. The arithmetic is lib/reduce/adamw.h's, so the bits are the host's.
//
// 28 bytes of memory traffic per element; a thread takes eight elements at a time, seven 16-byte loads in
// flight.
#pragma once
#include "lib/executor/cuda/device.h"
#include "lib/reduce/adamw.h"
#include "peal/adamw.h"

namespace peal::cuda {

// What one launch needs of the control block: read and computed by one thread, shared by the block.
struct AdamwStepView {
  AdamwScalars scalars;
  double learningRate;
  uint64_t step;  // number of this update, from 1
  bool skip;
};

// Elements [from, ...) whose decay is known: factor holds up to `end`.
struct AdamwDecay {
  uint64_t end = 0;
  float factor = 1;
};

struct AdamwRange {
  const uint16_t* gradient;  // of element `begin`
  uint16_t* weight;          // the same; may equal gradient
  uint64_t begin, count;     // of the shard
  uint16_t* kept;            // where the gradient of `begin` is kept; nullptr: nowhere
};

constexpr uint32_t kAdamwLanes = 8;

// To be followed by a barrier. `view` is the block's.
PEAL_DEVICE void readAdamwControl(const pealAdamw_t& state, AdamwStepView& view) {
  if (threadIndex() != 0) {
    return;
  }
  const pealAdamwControl_t* control = state.control;
  view.step = loadGlobal(&control->step) + 1;
  view.learningRate = loadGlobal(&control->learningRate);
  view.skip = loadGlobal(&control->nonFinite) != 0;
  view.scalars = adamwScalars({state.beta1, state.beta2, state.epsilon, 0}, view.learningRate, view.step,
                              loadGlobal(&control->gradientScale));
}

// Called once by every block when its part is done: the last one counts the step.
PEAL_DEVICE void finishAdamwStep(const pealAdamw_t& state, const AdamwStepView& view) {
  syncBlock();
  if (threadIndex() == 0 && !view.skip) {
    // Every block has read `step` before it gets here, and the next launch begins after this one.
    if (fetchAdd(&state.control->reserved, 1) == gridBlocks() - 1) {
      storeGlobal(&state.control->reserved, uint64_t{0});
      storeGlobal(&state.control->step, view.step);
    }
  }
}

PEAL_DEVICE AdamwDecay findDecay(const pealAdamw_t& state, const AdamwStepView& view, uint64_t index) {
  uint64_t low = 0;
  uint64_t high = state.segmentCount;
  while (low < high) {  // the first segment that ends behind index
    const uint64_t middle = (low + high) / 2;
    if (loadGlobal(&state.segments[middle].end) > index) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == state.segmentCount) {
    return {~uint64_t{0}, 1};
  }
  return {loadGlobal(&state.segments[low].end),
          adamwDecayFactor(view.learningRate, loadGlobal(&state.segments[low].weightDecay))};
}

PEAL_DEVICE uint16_t adamwWeight(const pealAdamw_t& state, const AdamwStepView& view, float master,
                                 uint64_t index) {
  if (state.stochasticRounding == 0) {
    return toBf16(master);
  }
  return stochasticBf16(master, roundingBits(state.seed, view.step, state.firstIndex + index));
}

PEAL_DEVICE void adamwOne(const pealAdamw_t& state, const AdamwStepView& view, const AdamwRange& range,
                          uint64_t i, AdamwDecay& decay) {
  const uint64_t index = range.begin + i;
  if (index >= decay.end) {
    decay = findDecay(state, view, index);
  }
  AdamwScalars scalars = view.scalars;
  scalars.decayFactor = decay.factor;
  float master = loadGlobal(state.master + index);
  float moment1 = loadGlobal(state.moment1 + index);
  float moment2 = loadGlobal(state.moment2 + index);
  const uint16_t gradient = loadGlobal(range.gradient + i);
  if (range.kept != nullptr) {
    storeGlobal(range.kept + i, gradient);
  }
  adamwElement(scalars, fromBf16(gradient), master, moment1, moment2);
  storeGlobal(state.master + index, master);
  storeGlobal(state.moment1 + index, moment1);
  storeGlobal(state.moment2 + index, moment2);
  storeGlobal(range.weight + i, adamwWeight(state, view, master, index));
}

struct AdamwFloats {
  Vec16 low, high;

  PEAL_DEVICE float get(uint32_t k) const {
    return __builtin_bit_cast(float, k < 4 ? low.word[k] : high.word[k - 4]);
  }
  PEAL_DEVICE void set(uint32_t k, float value) {
    (k < 4 ? low.word[k] : high.word[k - 4]) = __builtin_bit_cast(uint32_t, value);
  }
};

PEAL_DEVICE AdamwFloats loadFloats(const float* from) { return {load16(from), load16(from + 4)}; }
PEAL_DEVICE void storeFloats(float* to, const AdamwFloats& values) {
  store16(to, values.low);
  store16(to + 4, values.high);
}

// Elements [i, i + 8) of the range; all addresses are multiples of 16.
PEAL_DEVICE void adamwEight(const pealAdamw_t& state, const AdamwStepView& view, const AdamwRange& range,
                            uint64_t i, AdamwDecay& decay) {
  const uint64_t index = range.begin + i;
  const Vec16 gradient = load16(range.gradient + i);
  AdamwFloats master = loadFloats(state.master + index);
  AdamwFloats moment1 = loadFloats(state.moment1 + index);
  AdamwFloats moment2 = loadFloats(state.moment2 + index);
  if (range.kept != nullptr) {
    store16(range.kept + i, gradient);
  }
  Vec16 weight{};
  PEAL_UNROLL
  for (uint32_t k = 0; k < kAdamwLanes; ++k) {
    if (index + k >= decay.end) {
      decay = findDecay(state, view, index + k);
    }
    AdamwScalars scalars = view.scalars;
    scalars.decayFactor = decay.factor;
    float w = master.get(k);
    float m = moment1.get(k);
    float v = moment2.get(k);
    const auto g = static_cast<uint16_t>(gradient.word[k / 2] >> (16 * (k % 2)));
    adamwElement(scalars, fromBf16(g), w, m, v);
    master.set(k, w);
    moment1.set(k, m);
    moment2.set(k, v);
    weight.word[k / 2] |= static_cast<uint32_t>(adamwWeight(state, view, w, index + k)) << (16 * (k % 2));
  }
  storeFloats(state.master + index, master);
  storeFloats(state.moment1 + index, moment1);
  storeFloats(state.moment2 + index, moment2);
  store16(range.weight + i, weight);
}

// Threads [first, first + k * stride, ...) of the range: a block alone (threadIndex(), blockThreads()), or a
// whole grid.
PEAL_DEVICE void adamwRange(const pealAdamw_t& state, const AdamwStepView& view, const AdamwRange& range,
                            uint64_t thread, uint64_t threads) {
  const auto at = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16; };
  // Elements until the gradient is aligned; then all arrays are, or none of the vector path is taken.
  uint64_t head = (16 - at(range.gradient)) % 16 / 2;
  const bool together =
      at(range.gradient + head) == 0 && at(range.weight + head) == 0 &&
      (range.kept == nullptr || at(range.kept + head) == 0) && at(state.master + range.begin + head) == 0 &&
      at(state.moment1 + range.begin + head) == 0 && at(state.moment2 + range.begin + head) == 0;
  head = !together || head > range.count ? range.count : head;
  const uint64_t vectors = (range.count - head) / kAdamwLanes;
  AdamwDecay decay;
  for (uint64_t v = thread; v < vectors; v += threads) {
    adamwEight(state, view, range, head + v * kAdamwLanes, decay);
  }
  decay = {};
  const uint64_t tail = head + vectors * kAdamwLanes;
  for (uint64_t i = thread; i < head; i += threads) {
    adamwOne(state, view, range, i, decay);
  }
  for (uint64_t i = tail + thread; i < range.count; i += threads) {
    adamwOne(state, view, range, i, decay);
  }
}

}  // namespace peal::cuda

// The elementwise passes of kernels.h: eight elements a thread, with 16-byte accesses where values and sums
// are aligned alike.
#include "lib/zero/cuda/eight.cuh"
#include "lib/zero/cuda/kernels.h"

namespace peal::cuda {

PEAL_DEVICE void roundTo(uint16_t& value, float made) { value = toBf16(made); }
PEAL_DEVICE void roundTo(float& value, float made) { value = made; }

// What a pass makes of one element, and whether that is the sum or the value from now on.
struct StartPass {
  static constexpr bool kReadsValues = true, kReadsSums = false, kMakesValues = false;
  PEAL_DEVICE static float of(float value, float) { return value; }
};
struct AddPass {
  static constexpr bool kReadsValues = true, kReadsSums = true, kMakesValues = false;
  PEAL_DEVICE static float of(float value, float sum) { return sum + value; }
};
struct FinishPass {
  static constexpr bool kReadsValues = true, kReadsSums = true, kMakesValues = true;
  PEAL_DEVICE static float of(float value, float sum) { return sum + value; }
};
struct StorePass {
  static constexpr bool kReadsValues = false, kReadsSums = true, kMakesValues = true;
  PEAL_DEVICE static float of(float, float sum) { return sum; }
};

template <class Made, class Value>
PEAL_DEVICE void passAll(const ZeroPassArgs& args) {
  auto* values = static_cast<Value*>(args.values);
  float* sums = args.sums;
  const auto one = [&](uint64_t i) {
    const float value = Made::kReadsValues ? asFp32(loadGlobal(values + i)) : 0.0f;
    const float made = Made::of(value, Made::kReadsSums ? loadGlobal(sums + i) : 0.0f);
    if constexpr (Made::kMakesValues) {
      Value rounded;
      roundTo(rounded, made);
      storeGlobal(values + i, rounded);
    } else {
      storeGlobal(sums + i, made);
    }
  };
  const auto eight = [&](uint64_t i) {
    Eight<Value> from{}, rounded{};
    Eight<float> sum{};
    if constexpr (Made::kReadsValues) {
      from = loadEight(values + i);
    }
    if constexpr (Made::kReadsSums) {
      sum = loadEight(sums + i);
    }
    PEAL_UNROLL
    for (uint32_t k = 0; k < kEight; ++k) {
      const float made = Made::of(asFp32(from.get(k)), sum.get(k));
      Value value;
      roundTo(value, made);
      rounded.put(k, value);
      sum.put(k, made);
    }
    if constexpr (Made::kMakesValues) {
      storeEight(values + i, rounded);
    } else {
      storeEight(sums + i, sum);
    }
  };
  const uint64_t head = elementsToAlignment(values);
  const bool together = isAlignedAt(values, head) && isAlignedAt(sums, head);
  forEachOf(args.count, divide(args.count, head, together), eight, one);
}

template <class Value>
PEAL_DEVICE void passOfKind(const ZeroPassArgs& args) {
  switch (args.kind) {
    case 0:
      return passAll<StartPass, Value>(args);
    case 1:
      return passAll<AddPass, Value>(args);
    case 2:
      return passAll<FinishPass, Value>(args);
    case 3:
      return passAll<StorePass, Value>(args);
    default:
      halt();
  }
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) zeroPass(PEAL_GRID_CONSTANT ZeroPassArgs args) {
  if (args.isWide != 0) {
    passOfKind<float>(args);
  } else {
    passOfKind<uint16_t>(args);
  }
}

}  // namespace peal::cuda

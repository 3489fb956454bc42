// AdamW over one stretch of elements where gradients are fp32 or masters are not (kernels.h): the loops of
// lib/zero/loops.h, bit for bit. bf16 gradients and weights with fp32 masters are pealAdamwStep's.
//
// Memory traffic per element: 26 bytes with bf16 gradients and remainders or fp32 weights, 28 with fp32
// gradients and these, 30 with fp32 gradients and masters.
#include "lib/zero/cuda/eight.cuh"
#include "lib/zero/cuda/kernels.h"

namespace peal::cuda {

// Where the master of an element comes from and goes to. Kept: what is stored of it beside the weight.
struct PlainMasters {
  using Weight = uint16_t;
  using Kept = float;
  static constexpr bool kReadsWeight = false, kWritesWeight = true;
  PEAL_DEVICE static float join(Weight, Kept kept) { return kept; }
  PEAL_DEVICE static Kept keep(float master) { return master; }
  PEAL_DEVICE static Weight weight(const ZeroUpdateArgs& args, float master, uint64_t i) {
    if (args.stochasticRounding == 0) {
      return toBf16(master);
    }
    return stochasticBf16(master, roundingBits(args.seed, args.step, args.firstIndex + i));
  }
};
struct RemainderMasters {
  using Weight = uint16_t;
  using Kept = int16_t;
  static constexpr bool kReadsWeight = true, kWritesWeight = true;
  PEAL_DEVICE static float join(Weight weight, Kept kept) { return joinMaster(weight, kept); }
  PEAL_DEVICE static Kept keep(float master) { return splitRemainder(master); }
  PEAL_DEVICE static Weight weight(const ZeroUpdateArgs&, float master, uint64_t) {
    return splitWeight(master);
  }
};
// args.master are the weights.
struct WeightMasters {
  using Weight = float;
  using Kept = float;
  static constexpr bool kReadsWeight = false, kWritesWeight = false;
  PEAL_DEVICE static float join(Weight, Kept kept) { return kept; }
  PEAL_DEVICE static Kept keep(float master) { return master; }
  PEAL_DEVICE static Weight weight(const ZeroUpdateArgs&, float master, uint64_t) { return master; }
};

template <class Gradient, class Masters>
PEAL_DEVICE void updateAll(const ZeroUpdateArgs& args) {
  using Weight = typename Masters::Weight;
  using Kept = typename Masters::Kept;
  const auto* gradient = static_cast<const Gradient*>(args.gradient);
  auto* kept = static_cast<Kept*>(args.master);
  auto* weight = static_cast<Weight*>(args.weight);
  float* moment1 = args.moment1;
  float* moment2 = args.moment2;
  const auto one = [&](uint64_t i) {
    float master =
        Masters::join(Masters::kReadsWeight ? loadGlobal(weight + i) : Weight{}, loadGlobal(kept + i));
    float m = loadGlobal(moment1 + i);
    float v = loadGlobal(moment2 + i);
    adamwElement(args.scalars, asFp32(loadGlobal(gradient + i)), master, m, v);
    storeGlobal(moment1 + i, m);
    storeGlobal(moment2 + i, v);
    storeGlobal(kept + i, Masters::keep(master));
    if constexpr (Masters::kWritesWeight) {
      storeGlobal(weight + i, Masters::weight(args, master, i));
    }
  };
  const auto eight = [&](uint64_t i) {
    const Eight<Gradient> gradients = loadEight(gradient + i);
    const Eight<Kept> before = loadEight(kept + i);
    Eight<float> m = loadEight(moment1 + i);
    Eight<float> v = loadEight(moment2 + i);
    Eight<Weight> read{}, written{};
    Eight<Kept> after{};
    if constexpr (Masters::kReadsWeight) {
      read = loadEight(weight + i);
    }
    PEAL_UNROLL
    for (uint32_t k = 0; k < kEight; ++k) {
      float master = Masters::join(read.get(k), before.get(k));
      float first = m.get(k);
      float second = v.get(k);
      adamwElement(args.scalars, asFp32(gradients.get(k)), master, first, second);
      m.put(k, first);
      v.put(k, second);
      after.put(k, Masters::keep(master));
      written.put(k, Masters::weight(args, master, i + k));
    }
    storeEight(moment1 + i, m);
    storeEight(moment2 + i, v);
    storeEight(kept + i, after);
    if constexpr (Masters::kWritesWeight) {
      storeEight(weight + i, written);
    }
  };
  const uint64_t head = elementsToAlignment(moment1);
  const bool together = isAlignedAt(gradient, head) && isAlignedAt(kept, head) && isAlignedAt(weight, head) &&
                        isAlignedAt(moment1, head) && isAlignedAt(moment2, head);
  forEachOf(args.count, divide(args.count, head, together), eight, one);
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) zeroUpdate(PEAL_GRID_CONSTANT ZeroUpdateArgs args) {
  switch (args.kind) {
    case ZeroUpdateKind::Remainders:
      return updateAll<uint16_t, RemainderMasters>(args);
    case ZeroUpdateKind::OwnMasters:
      return updateAll<uint16_t, WeightMasters>(args);
    case ZeroUpdateKind::WideGradients:
      return updateAll<float, PlainMasters>(args);
    case ZeroUpdateKind::WideRemainders:
      return updateAll<float, RemainderMasters>(args);
    case ZeroUpdateKind::WideWeights:
      return updateAll<float, WeightMasters>(args);
  }
  halt();
}

}  // namespace peal::cuda

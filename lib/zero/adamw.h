// AdamW's scalars: computed in double from the settings and rounded once, so that the loop over a flat shard
// (Loops::adamw: bf16 gradient in, fp32 master and moments in and out, bf16 weight out, 28 bytes of memory
// traffic per parameter) has nothing to compute but the elements. Called by the engine's step.
#pragma once
#include <cstdint>

#include "lib/zero/loops.h"

namespace peal::zero {

struct AdamwSettings {
  double beta1, beta2, epsilon, weightDecay;
};

// Scalars of update number `step` (from 1), without decay.
AdamwScalars adamwScalars(const AdamwSettings& settings, double learningRate, uint64_t step,
                          double gradientScale);

// AdamwScalars::decayFactor for parameters that decay.
float decayFactor(const AdamwSettings& settings, double learningRate);

}  // namespace peal::zero

// What all parts of the engine look at: the options, the layout, and which elements this rank updates.
#pragma once
#include <vector>

#include "lib/zero/elements.h"
#include "lib/zero/layout.h"
#include "peal/zero.h"

namespace peal::zero {

// The part of a bucket that this rank's optimizer updates: everything at stage 0, its block at the others.
struct Owned {
  uint64_t begin;  // from the start of the bucket
  uint64_t elements;
  uint64_t state;  // where it lies in the arenas of the optimizer
};

// AdamW's numbers of a group of parameters.
struct Group {
  double learningRateFactor, beta1, beta2, epsilon, weightDecay;
};

struct Model {
  pealZeroOptions_t options;
  // Groups of ranks that divide the elements, and which one this is. Owned elements, weights and state have
  // the same bits in every group: a rank of group 0 may write them for all (checkpoints).
  int replicas = 1, replica = 0;
  std::vector<Group> groups;  // 0: the options'
  Layout layout;
  // This rank's arenas: of the parameters of each type, and together (without `optimizer`).
  PerPrecision<pealZeroPlanStage_t> plans;
  pealZeroPlanStage_t plan{};

  int stage() const { return options.stage; }
  // Of what gradients are handed over, summed and kept in.
  Precision gradientPrecision() const {
    return options.reduceType == pealZeroReduceFp32 ? Precision::Fp32 : Precision::Bf16;
  }
  // Of an element's master in the arenas: fp32 weights are their own.
  uint64_t masterBytes(Precision weights) const {
    return weights == Precision::Fp32 ? 0 : options.master == pealZeroMasterRemainder ? 2 : 4;
  }
  uint64_t gradientBytes() const { return bytesOf(gradientPrecision()); }
  Owned owned(const Bucket& bucket) const {
    if (stage() == 0) {
      return {0, bucket.elements, bucket.begin};
    }
    return {bucket.ownBegin, bucket.ownElements, bucket.shardBegin};
  }
  // What a trace calls a bucket: at stage 3 its unit.
  int64_t nameOf(size_t bucket) const {
    return stage() == 3 ? layout.parameters[layout.buckets[bucket].parameters.front()].unit
                        : static_cast<int64_t>(bucket);
  }
  // Gradients of several micro-batches are added up on this rank before they are reduced.
  bool addsUpLocally() const {
    return options.microBatches > 1 && stage() <= 1 && options.reduceEachMicroBatch == 0;
  }
  // Or after.
  bool addsUpReduced() const { return options.microBatches > 1 && !addsUpLocally(); }
  // After their reduction in the group, and before the one over replicas, which is one for the step.
  bool addsUpInGroup() const { return addsUpReduced() && replicas > 1 && options.reduceEachMicroBatch == 0; }
};

}  // namespace peal::zero

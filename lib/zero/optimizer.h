// The optimizer's state of the elements that this rank owns: fp32 master weights and two moments, and the
// update of one bucket's part of them. Runs on the caller's thread; communicates nothing.
#pragma once
#include <span>
#include <vector>

#include "lib/zero/arena.h"
#include "lib/zero/loops.h"
#include "lib/zero/model.h"

namespace peal::zero {

class Optimizer {
 public:
  Result<void> allocate(const Model& model);
  void describeMemory(ArenaList& list) const;

  // The first values of `count` elements from `begin` of the bucket; what is not owned is passed over.
  void setInitial(const Bucket& bucket, uint64_t begin, std::span<const float> values);

  // Begins update number `step`; every gradient is multiplied by gradientScale.
  void beginUpdate(double learningRate, uint64_t step, double gradientScale);
  // gradient, weight: the owned part of bucket number `index`.
  void update(size_t index, const uint16_t* gradient, uint16_t* weight);

  // The owned part of a bucket in one of the three arenas.
  const float* state(pealZeroTensor_t tensor, const Bucket& bucket) const;

 private:
  const Model* model_ = nullptr;
  Arena master_, moment1_, moment2_;
  std::vector<std::vector<Segment>> segments_;  // per bucket, of the owned part
  struct GroupScalars {
    AdamwScalars scalars;  // without decay
    float decayFactor;
  };
  std::vector<GroupScalars> groups_;  // of the running update
};

}  // namespace peal::zero

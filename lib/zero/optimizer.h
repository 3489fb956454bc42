// The optimizer's state of the elements that this rank owns: fp32 master weights (or their remainders; none
// of fp32 weights, which are their own masters) and two moments, and the update of one bucket's part of them,
// in the caller's queue. Communicates nothing.
#pragma once
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "lib/zero/arena.h"
#include "lib/zero/device_steps.h"
#include "lib/zero/loops.h"
#include "lib/zero/model.h"
#include "lib/zero/plane.h"

namespace peal::zero {

class Optimizer {
 public:
  Result<void> allocate(const Model& model, const std::shared_ptr<Device>& device);
  void describeMemory(ArenaList& list) const;

  // The layout's buckets are others now; the arenas have moved.
  Result<void> followLayout();
  // The arenas, plane by plane: of masters, which only elements of bf16 weights have, and of moments.
  std::vector<Plane> masterPlanes() const;
  std::vector<Plane> momentPlanes() const;

  // The first values of `count` elements from `begin` of the bucket; what is not owned is passed over.
  Result<void> setInitial(const Bucket& bucket, uint64_t begin, std::span<const float> values);

  // Begins update number `step`; every gradient is multiplied by gradientScale. Does::Nothing: on a GPU the
  // calls that follow skip.
  using Does = DeviceSteps::Does;
  Result<void> beginUpdate(double learningRate, uint64_t step, double gradientScale,
                           Does does = Does::Update);
  // gradient, weight: the owned part of bucket number `index`.
  Result<void> update(size_t index, Elements gradient, Elements weight);
  // Elements [first, first + count) of that part, on host memory on any thread; gradient and weight are the
  // first one's.
  Result<void> updatePiece(size_t index, uint64_t first, uint64_t count, Elements gradient, Elements weight);

  // The update as a part of one collective on a GPU: see DeviceSteps, which is there where this may be asked.
  pealAdamw_t fusedCall(size_t index, void* reduced) const { return steps_->fusedCall(index, reduced); }

  // `count` elements from `offset` of the owned part of a bucket: master weights or a moment. weight: the
  // owned part of the bucket's weights. In an arena, or in room if they have to be put together or are not
  // the host's.
  Result<const float*> state(pealZeroTensor_t tensor, const Bucket& bucket, uint64_t offset, uint64_t count,
                             Elements weight, std::vector<float>& room) const;
  // The same of a moment, to be written.
  float* moment(pealZeroTensor_t tensor, const Bucket& bucket, uint64_t offset);
  // All of the arenas.
  std::array<std::span<const std::byte>, 3> held() const {
    return {master_.bytes(), moment1_.bytes(), moment2_.bytes()};
  }

 private:
  const Model* model_ = nullptr;
  std::shared_ptr<Device> device_;
  bool hasRemainders() const { return model_->options.master == pealZeroMasterRemainder; }

  uint64_t masterBytes() const { return model_->masterBytes(Precision::Bf16); }
  static bool hasMasters(const Bucket& bucket) { return bucket.precision == Precision::Bf16; }
  void* master(const Bucket& bucket, uint64_t element) const;

  Arena master_;  // fp32, or int16_t remainders, of bf16 weights
  Arena moment1_, moment2_;
  std::vector<std::vector<Segment>> segments_;  // per bucket, of the owned part
  std::optional<DeviceSteps> steps_;            // on a GPU: bf16 gradients, bf16 weights and fp32 masters
  struct GroupScalars {
    AdamwScalars scalars;  // without decay
    float decayFactor;
  };
  std::vector<GroupScalars> groups_;  // of the running update
  uint64_t step_ = 0;                 // its number
};

}  // namespace peal::zero

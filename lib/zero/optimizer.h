// The optimizer's state of the elements that this rank owns: fp32 master weights (or their remainders) and
// two moments, and the update of one bucket's part of them, in the caller's queue. Communicates nothing.
#pragma once
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "lib/zero/arena.h"
#include "lib/zero/device_steps.h"
#include "lib/zero/loops.h"
#include "lib/zero/model.h"

namespace peal::zero {

// 16 bits of each element of an arena.
struct Plane {
  std::byte* data;
  size_t strideBytes;
  uint16_t get(uint64_t element) const {
    uint16_t bits;
    std::memcpy(&bits, data + element * strideBytes, sizeof bits);
    return bits;
  }
  void set(uint64_t element, uint16_t bits) const {
    std::memcpy(data + element * strideBytes, &bits, sizeof bits);
  }
};

class Optimizer {
 public:
  Result<void> allocate(const Model& model, const std::shared_ptr<Device>& device);
  void describeMemory(ArenaList& list) const;

  // The layout's buckets are others now; the arenas have moved.
  void followLayout();
  // The arenas, plane by plane.
  std::vector<Plane> planes() const;

  // The first values of `count` elements from `begin` of the bucket; what is not owned is passed over.
  Result<void> setInitial(const Bucket& bucket, uint64_t begin, std::span<const float> values);

  // Begins update number `step`; every gradient is multiplied by gradientScale.
  Result<void> beginUpdate(double learningRate, uint64_t step, double gradientScale);
  // gradient, weight: the owned part of bucket number `index`.
  Result<void> update(size_t index, Elements gradient, Elements weight);
  // Elements [first, first + count) of that part, on host memory; gradient and weight are the first one's.
  void updatePiece(size_t index, uint64_t first, uint64_t count, Elements gradient, Elements weight);

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

  bool hasMasters() const { return model_->options.master != pealZeroMasterIsWeight; }

  Arena master_;  // fp32, or int16_t remainders; none if the weights are the masters
  Arena moment1_, moment2_;
  std::vector<std::vector<Segment>> segments_;  // per bucket, of the owned part
  DeviceSteps steps_;                           // on a GPU
  struct GroupScalars {
    AdamwScalars scalars;  // without decay
    float decayFactor;
  };
  // One stretch with the same numbers; Gradient: of gradient's elements.
  template <class Gradient>
  void updateStretch(const AdamwScalars& scalars, const Gradient* gradient, uint64_t state, Elements weight,
                     const Segment& segment);
  std::vector<GroupScalars> groups_;  // of the running update
  uint64_t step_ = 0;                 // its number
};

}  // namespace peal::zero

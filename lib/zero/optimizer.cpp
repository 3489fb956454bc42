#include "lib/zero/optimizer.h"

#include <algorithm>

namespace peal::zero {
namespace {

constexpr uint64_t kFloatBytes = 4;
constexpr uint64_t kStateArenas = 3;

}  // namespace

Result<void> Optimizer::allocate(const Model& model) {
  model_ = &model;
  const uint64_t owned = model.stage() == 0 ? model.layout.elements : model.layout.shardElements;
  const uint64_t planned = model.plan.optimizer / kStateArenas;
  PEAL_TRY(
      master_.allocate("master", pealZeroModelState, ArenaMemory::Private, owned * kFloatBytes, planned));
  PEAL_TRY(
      moment1_.allocate("moment1", pealZeroModelState, ArenaMemory::Private, owned * kFloatBytes, planned));
  PEAL_TRY(
      moment2_.allocate("moment2", pealZeroModelState, ArenaMemory::Private, owned * kFloatBytes, planned));
  groups_.reserve(model.groups.size());
  for (const Bucket& bucket : model.layout.buckets) {
    const Owned part = model.owned(bucket);
    segments_.push_back(updateSegments(model.layout, bucket, part.begin, part.elements));
  }
  return {};
}

void Optimizer::describeMemory(ArenaList& list) const {
  describe(master_, list);
  describe(moment1_, list);
  describe(moment2_, list);
}

void Optimizer::setInitial(const Bucket& bucket, uint64_t begin, std::span<const float> values) {
  const Owned part = model_->owned(bucket);
  const uint64_t from = std::max(begin, part.begin);
  const uint64_t to = std::min(begin + values.size(), part.begin + part.elements);
  if (from < to) {
    std::copy_n(values.data() + (from - begin), to - from,
                master_.as<float>() + part.state + (from - part.begin));
  }
}

void Optimizer::beginUpdate(double learningRate, uint64_t step, double gradientScale) {
  groups_.clear();
  for (const Group& group : model_->groups) {
    const AdamwSettings settings{group.beta1, group.beta2, group.epsilon, group.weightDecay};
    const double rate = learningRate * group.learningRateFactor;
    groups_.push_back(
        {adamwScalars(settings, rate, step, gradientScale), adamwDecayFactor(rate, settings.weightDecay)});
  }
}

void Optimizer::update(size_t index, const uint16_t* gradient, uint16_t* weight) {
  const Owned part = model_->owned(model_->layout.buckets[index]);
  for (const Segment& segment : segments_[index]) {
    const uint64_t offset = segment.begin - part.begin;
    const uint64_t at = part.state + offset;
    const GroupScalars& group = groups_[static_cast<size_t>(segment.group)];
    AdamwScalars scalars = group.scalars;
    scalars.decayFactor = segment.decay == pealZeroDecay ? group.decayFactor : 1.0f;
    loops().adamw(scalars, {gradient + offset, master_.as<float>() + at, moment1_.as<float>() + at,
                            moment2_.as<float>() + at, weight + offset, segment.elements});
  }
}

const float* Optimizer::state(pealZeroTensor_t tensor, const Bucket& bucket) const {
  const Arena& arena = tensor == pealZeroMaster ? master_ : tensor == pealZeroMoment1 ? moment1_ : moment2_;
  return arena.as<float>() + model_->owned(bucket).state;
}

}  // namespace peal::zero

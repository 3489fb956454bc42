#include "lib/zero/optimizer.h"

#include <algorithm>

namespace peal::zero {
namespace {

constexpr uint64_t kFloatBytes = 4;

}  // namespace

Result<void> Optimizer::allocate(const Model& model, const std::shared_ptr<Device>& device) {
  model_ = &model;
  device_ = device;
  uint64_t owned = 0, planned = 0;  // elements
  PerPrecision<uint64_t> ownedOf, plannedOf;
  for (const Precision precision : kPrecisions) {
    const Extent& of = model.layout.of[precision];
    owned += ownedOf[precision] = model.stage() == 0 ? of.elements : of.shardElements;
    planned += plannedOf[precision] =
        model.plans[precision].optimizer / (model.masterBytes(precision) + 2 * kFloatBytes);
  }
  const auto allocate = [&](Arena& arena, const char* name, uint64_t elements, uint64_t plannedElements,
                            uint64_t bytes) {
    return arena.allocate(device, name, pealZeroModelState, ArenaMemory::Private, elements * bytes,
                          plannedElements * bytes);
  };
  // Where fp32 is the rule, bf16 weights are the exception.
  if (model.options.master != pealZeroMasterIsWeight || model.layout.of[Precision::Bf16].buckets > 0) {
    PEAL_TRY(allocate(master_, hasRemainders() ? "remainders" : "master", ownedOf[Precision::Bf16],
                      plannedOf[Precision::Bf16], masterBytes()));
  }
  PEAL_TRY(allocate(moment1_, "moment1", owned, planned, kFloatBytes));
  PEAL_TRY(allocate(moment2_, "moment2", owned, planned, kFloatBytes));
  groups_.reserve(model.groups.size());
  if (!device->isHost() && master_.exists() && !hasRemainders() &&
      model.gradientPrecision() == Precision::Bf16) {
    PEAL_TRY(steps_.emplace().allocate(model, device,
                                       {master_.as<float>(), moment1_.as<float>(), moment2_.as<float>()}));
  }
  return followLayout();
}

Result<void> Optimizer::followLayout() {
  segments_.clear();
  for (const Bucket& bucket : model_->layout.buckets) {
    const Owned part = model_->owned(bucket);
    segments_.push_back(updateSegments(model_->layout, bucket, part.begin, part.elements));
  }
  return steps_ ? steps_->followLayout(segments_) : Result<void>();
}

std::vector<Plane> Optimizer::masterPlanes() const {
  return planesOf(master_, master_.exists() ? masterBytes() : 0);
}

std::vector<Plane> Optimizer::momentPlanes() const {
  std::vector<Plane> planes = planesOf(moment1_, kFloatBytes);
  for (const Plane& plane : planesOf(moment2_, kFloatBytes)) {
    planes.push_back(plane);
  }
  return planes;
}

void Optimizer::describeMemory(ArenaList& list) const {
  describe(master_, list);
  describe(moment1_, list);
  describe(moment2_, list);
}

Result<void> Optimizer::setInitial(const Bucket& bucket, uint64_t begin, std::span<const float> values) {
  const Owned part = model_->owned(bucket);
  const uint64_t from = std::max(begin, part.begin);
  const uint64_t to = std::min(begin + values.size(), part.begin + part.elements);
  if (from >= to || !hasMasters(bucket)) {
    return {};
  }
  const float* first = values.data() + (from - begin);
  const uint64_t at = part.state + (from - part.begin);
  if (hasRemainders()) {
    return device_->write(master_.as<int16_t>() + at, to - from, [&](int16_t* remainders) {
      loops().splitRemainders(first, remainders, to - from);
    });
  }
  return device_->upload(master_.as<float>() + at, first, (to - from) * kFloatBytes);
}

Result<void> Optimizer::beginUpdate(double learningRate, uint64_t step, double gradientScale, Does does) {
  step_ = step;
  groups_.clear();
  for (const Group& group : model_->groups) {
    const AdamwSettings settings{group.beta1, group.beta2, group.epsilon, group.weightDecay};
    const double rate = learningRate * group.learningRateFactor;
    groups_.push_back(
        {adamwScalars(settings, rate, step, gradientScale), adamwDecayFactor(rate, settings.weightDecay)});
  }
  return steps_ ? steps_->beginUpdate(learningRate, step, gradientScale, does) : Result<void>();
}

Result<void> Optimizer::update(size_t index, Elements gradient, Elements weight) {
  const Bucket& bucket = model_->layout.buckets[index];
  if (steps_ && hasMasters(bucket)) {
    return steps_->update(index, gradient.bf16(), weight.bf16());
  }
  return updatePiece(index, 0, model_->owned(bucket).elements, gradient, weight);
}

Result<void> Optimizer::updatePiece(size_t index, uint64_t first, uint64_t count, Elements gradient,
                                    Elements weight) {
  const Bucket& bucket = model_->layout.buckets[index];
  const Owned part = model_->owned(bucket);
  const uint64_t begin = part.begin + first, end = begin + count;
  const std::vector<Segment>& segments = segments_[index];
  auto segment = std::partition_point(segments.begin(), segments.end(), [begin](const Segment& before) {
    return before.begin + before.elements <= begin;
  });
  for (; segment != segments.end() && segment->begin < end; ++segment) {
    const uint64_t from = std::max(begin, segment->begin);
    const GroupScalars& group = groups_[static_cast<size_t>(segment->group)];
    AdamwScalars scalars = group.scalars;
    scalars.decayFactor = segment->decay == pealZeroDecay ? group.decayFactor : 1.0f;
    const uint64_t state = part.state + (from - part.begin);
    PEAL_TRY(device_->update({scalars,
                              gradient.at(from - begin),
                              weight.at(from - begin),
                              master(bucket, state),
                              moment1_.as<float>() + state,
                              moment2_.as<float>() + state,
                              std::min(end, segment->begin + segment->elements) - from,
                              hasRemainders() && hasMasters(bucket),
                              model_->options.stochasticRounding != 0,
                              {model_->options.seed, step_, segment->index + (from - segment->begin)}}));
  }
  return {};
}

// Of an element of the arena; nullptr: it is the weight.
void* Optimizer::master(const Bucket& bucket, uint64_t element) const {
  return !hasMasters(bucket) ? nullptr : master_.as<std::byte>() + element * masterBytes();
}

Result<const float*> Optimizer::state(pealZeroTensor_t tensor, const Bucket& bucket, uint64_t offset,
                                      uint64_t count, Elements weight, std::vector<float>& room) const {
  const uint64_t at = model_->owned(bucket).state + offset;
  if (tensor == pealZeroMaster && !hasMasters(bucket)) {
    return device_->view<float>(weight.at(offset).fp32(), count, room);
  }
  if (tensor == pealZeroMaster && hasRemainders()) {
    std::vector<uint16_t> weights;
    std::vector<int16_t> remainders;
    const Result<const uint16_t*> upper = device_->view<uint16_t>(weight.at(offset).bf16(), count, weights);
    const Result<const int16_t*> lower =
        device_->view<int16_t>(master_.as<int16_t>() + at, count, remainders);
    if (!upper || !lower) {
      return upper ? lower.error() : upper.error();
    }
    room.resize(count + 1);  // one more: an empty vector has no address
    loops().join(*upper, *lower, room.data(), count);
    return static_cast<const float*>(room.data());
  }
  const Arena& arena = tensor == pealZeroMaster ? master_ : tensor == pealZeroMoment1 ? moment1_ : moment2_;
  return device_->view<float>(arena.as<float>() + at, count, room);
}

float* Optimizer::moment(pealZeroTensor_t tensor, const Bucket& bucket, uint64_t offset) {
  const Arena& arena = tensor == pealZeroMoment1 ? moment1_ : moment2_;
  return arena.as<float>() + model_->owned(bucket).state + offset;
}

}  // namespace peal::zero

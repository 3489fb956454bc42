#include "lib/zero/optimizer.h"

#include <algorithm>

namespace peal::zero {
namespace {

constexpr uint64_t kFloatBytes = 4;
constexpr uint64_t kRemainderBytes = 2;

}  // namespace

Result<void> Optimizer::allocate(const Model& model, const std::shared_ptr<Device>& device) {
  model_ = &model;
  device_ = device;
  const uint64_t owned = model.stage() == 0 ? model.layout.elements : model.layout.shardElements;
  const uint64_t planned = model.plan.optimizer / (masterBytes() + 2 * kFloatBytes);  // elements
  const auto allocate = [&](Arena& arena, const char* name, uint64_t bytes) {
    return arena.allocate(device, name, pealZeroModelState, ArenaMemory::Private, owned * bytes,
                          planned * bytes);
  };
  if (hasMasters()) {
    PEAL_TRY(allocate(master_, hasRemainders() ? "remainders" : "master", masterBytes()));
  }
  PEAL_TRY(allocate(moment1_, "moment1", kFloatBytes));
  PEAL_TRY(allocate(moment2_, "moment2", kFloatBytes));
  groups_.reserve(model.groups.size());
  if (!device->isHost() && hasMasters() && !hasRemainders() && model.gradientPrecision() == Precision::Bf16) {
    PEAL_TRY(steps_.emplace().allocate(model, device,
                                       {master_.as<float>(), moment1_.as<float>(), moment2_.as<float>()}));
  }
  return followLayout();
}

uint64_t Optimizer::masterBytes() const {
  return !hasMasters() ? 0 : hasRemainders() ? kRemainderBytes : kFloatBytes;
}

Result<void> Optimizer::followLayout() {
  segments_.clear();
  for (const Bucket& bucket : model_->layout.buckets) {
    const Owned part = model_->owned(bucket);
    segments_.push_back(updateSegments(model_->layout, bucket, part.begin, part.elements));
  }
  return steps_ ? steps_->followLayout(segments_) : Result<void>();
}

Result<void> Plane::get(Device& device, uint64_t first, uint64_t count, uint16_t* to) const {
  std::vector<std::byte> room;
  const Result<const std::byte*> from =
      device.view<std::byte>(arena_ + first * stride_, count * stride_, room);
  if (!from) {
    return from.error();
  }
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(to + i, *from + i * stride_ + offset_, sizeof *to);
  }
  return {};
}

Result<void> Plane::set(Device& device, uint64_t first, uint64_t count, const uint16_t* from) const {
  std::byte* const at = arena_ + first * stride_;
  std::vector<std::byte> room;
  const Result<const std::byte*> before = device.view<std::byte>(at, count * stride_, room);
  if (!before) {
    return before.error();
  }
  std::byte* const to = device.isHost() ? at : room.data();
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * stride_ + offset_, from + i, sizeof *from);
  }
  return device.isHost() ? Result<void>() : device.upload(at, to, count * stride_);
}

std::vector<Plane> Optimizer::planes() const {
  std::vector<Plane> planes;
  for (const Arena* arena : {&master_, &moment1_, &moment2_}) {
    if (!arena->exists()) {
      continue;
    }
    const uint64_t bytes = arena == &master_ ? masterBytes() : kFloatBytes;
    for (uint64_t offset = 0; offset < bytes; offset += sizeof(uint16_t)) {
      planes.emplace_back(arena->as<std::byte>(), offset, bytes);
    }
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
  if (from >= to || !hasMasters()) {
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
  if (steps_) {
    return steps_->beginUpdate(learningRate, step, gradientScale, does);
  }
  step_ = step;
  groups_.clear();
  for (const Group& group : model_->groups) {
    const AdamwSettings settings{group.beta1, group.beta2, group.epsilon, group.weightDecay};
    const double rate = learningRate * group.learningRateFactor;
    groups_.push_back(
        {adamwScalars(settings, rate, step, gradientScale), adamwDecayFactor(rate, settings.weightDecay)});
  }
  return {};
}

Result<void> Optimizer::update(size_t index, Elements gradient, Elements weight) {
  if (steps_) {
    return steps_->update(index, gradient.bf16(), weight.bf16());
  }
  return updatePiece(index, 0, model_->owned(model_->layout.buckets[index]).elements, gradient, weight);
}

Result<void> Optimizer::updatePiece(size_t index, uint64_t first, uint64_t count, Elements gradient,
                                    Elements weight) {
  const Owned part = model_->owned(model_->layout.buckets[index]);
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
                              master(state),
                              moment1_.as<float>() + state,
                              moment2_.as<float>() + state,
                              std::min(end, segment->begin + segment->elements) - from,
                              hasRemainders(),
                              model_->options.stochasticRounding != 0,
                              {model_->options.seed, step_, segment->index + (from - segment->begin)}}));
  }
  return {};
}

// Of an element of the arena; nullptr: it is the weight.
void* Optimizer::master(uint64_t element) const {
  return !hasMasters() ? nullptr : master_.as<std::byte>() + element * masterBytes();
}

Result<const float*> Optimizer::state(pealZeroTensor_t tensor, const Bucket& bucket, uint64_t offset,
                                      uint64_t count, Elements weight, std::vector<float>& room) const {
  const uint64_t at = model_->owned(bucket).state + offset;
  if (tensor == pealZeroMaster && !hasMasters()) {
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

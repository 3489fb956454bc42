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
  const uint64_t masterBytes = !hasMasters() ? 0 : hasRemainders() ? kRemainderBytes : kFloatBytes;
  const uint64_t planned = model.plan.optimizer / (masterBytes + 2 * kFloatBytes);  // elements
  const auto allocate = [&](Arena& arena, const char* name, uint64_t bytes) {
    return arena.allocate(device, name, pealZeroModelState, ArenaMemory::Private, owned * bytes,
                          planned * bytes);
  };
  if (hasMasters()) {
    PEAL_TRY(allocate(master_, hasRemainders() ? "remainders" : "master", masterBytes));
  }
  PEAL_TRY(allocate(moment1_, "moment1", kFloatBytes));
  PEAL_TRY(allocate(moment2_, "moment2", kFloatBytes));
  groups_.reserve(model.groups.size());
  followLayout();
  if (!device->isHost()) {
    return steps_.allocate(model, device, segments_,
                           {master_.as<float>(), moment1_.as<float>(), moment2_.as<float>()});
  }
  return {};
}

void Optimizer::followLayout() {
  segments_.clear();
  for (const Bucket& bucket : model_->layout.buckets) {
    const Owned part = model_->owned(bucket);
    segments_.push_back(updateSegments(model_->layout, bucket, part.begin, part.elements));
  }
}

std::vector<Plane> Optimizer::planes() const {
  std::vector<Plane> planes;
  for (const Arena* arena : {&master_, &moment1_, &moment2_}) {
    if (!arena->exists()) {
      continue;
    }
    const uint64_t bytes = arena == &master_ && hasRemainders() ? kRemainderBytes : kFloatBytes;
    for (uint64_t offset = 0; offset < bytes; offset += sizeof(uint16_t)) {
      planes.push_back({arena->as<std::byte>() + offset, bytes});
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

Result<void> Optimizer::beginUpdate(double learningRate, uint64_t step, double gradientScale) {
  if (!device_->isHost()) {
    return steps_.beginUpdate(learningRate, step, gradientScale);
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

namespace {

// The loops of a gradient's type.
template <class Gradient>
struct AdamwLoops;
template <>
struct AdamwLoops<uint16_t> {
  static constexpr auto plain = &Loops::adamw;
  static constexpr auto stochastic = &Loops::adamwStochastic;
  static constexpr auto remainder = &Loops::adamwRemainder;
};
template <>
struct AdamwLoops<float> {
  static constexpr auto plain = &Loops::adamwFp32;
  static constexpr auto stochastic = &Loops::adamwStochasticFp32;
  static constexpr auto remainder = &Loops::adamwRemainderFp32;
};

}  // namespace

template <class Gradient>
void Optimizer::updateStretch(const AdamwScalars& scalars, const Gradient* gradient, uint64_t state,
                              Elements weight, const Segment& segment) {
  using Ways = AdamwLoops<Gradient>;
  const Loops& with = loops();
  float* moment1 = moment1_.as<float>() + state;
  float* moment2 = moment2_.as<float>() + state;
  if (hasRemainders()) {
    (with.*Ways::remainder)(scalars, {gradient, master_.as<int16_t>() + state, moment1, moment2,
                                      weight.bf16(), segment.elements});
    return;
  }
  const AdamwArgsOf<Gradient> args{
      gradient, master_.as<float>() + state, moment1, moment2, weight.bf16(), segment.elements};
  if (model_->options.stochasticRounding != 0) {
    (with.*Ways::stochastic)(scalars, args, {model_->options.seed, step_, segment.index});
  } else {
    (with.*Ways::plain)(scalars, args);
  }
}

Result<void> Optimizer::update(size_t index, Elements gradient, Elements weight) {
  if (!device_->isHost()) {
    return steps_.update(index, gradient.bf16(), weight.bf16());
  }
  updatePiece(index, 0, model_->owned(model_->layout.buckets[index]).elements, gradient, weight);
  return {};
}

void Optimizer::updatePiece(size_t index, uint64_t first, uint64_t count, Elements gradient,
                            Elements weight) {
  const Owned part = model_->owned(model_->layout.buckets[index]);
  const uint64_t begin = part.begin + first, end = begin + count;
  const std::vector<Segment>& segments = segments_[index];
  auto segment = std::partition_point(segments.begin(), segments.end(), [begin](const Segment& before) {
    return before.begin + before.elements <= begin;
  });
  for (; segment != segments.end() && segment->begin < end; ++segment) {
    Segment stretch = *segment;
    stretch.begin = std::max(begin, segment->begin);
    stretch.elements = std::min(end, segment->begin + segment->elements) - stretch.begin;
    stretch.index += stretch.begin - segment->begin;
    const GroupScalars& group = groups_[static_cast<size_t>(stretch.group)];
    AdamwScalars scalars = group.scalars;
    scalars.decayFactor = stretch.decay == pealZeroDecay ? group.decayFactor : 1.0f;
    const uint64_t state = part.state + (stretch.begin - part.begin), offset = stretch.begin - begin;
    const Elements from = gradient.at(offset);
    if (!hasMasters()) {
      loops().adamwWeightsFp32(scalars, {from.fp32(), weight.at(offset).fp32(), moment1_.as<float>() + state,
                                         moment2_.as<float>() + state, stretch.elements});
    } else if (from.isWide()) {
      updateStretch(scalars, from.fp32(), state, weight.at(offset), stretch);
    } else {
      updateStretch(scalars, from.bf16(), state, weight.at(offset), stretch);
    }
  }
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

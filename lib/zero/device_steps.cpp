#include "lib/zero/device_steps.h"

#include <fmt/format.h>

namespace peal::zero {

void DeviceSteps::addRuns(const std::vector<Segment>& segments, const Owned& part,
                          std::vector<pealAdamwSegment_t>& table) {
  uint64_t nextIndex = 0;
  for (const Segment& segment : segments) {
    const Group& group = model_->groups[static_cast<size_t>(segment.group)];
    // An element's number counts only for random rounding.
    const bool goesOn = firstRun_.back() < runs_.size() && runs_.back().group == segment.group &&
                        (model_->options.stochasticRounding == 0 || nextIndex == segment.index);
    if (!goesOn) {
      const uint64_t offset = segment.begin - part.begin;
      const uint64_t at = part.state + offset;
      const pealAdamw_t shard{group.beta1,
                              group.beta2,
                              group.epsilon,
                              state_.master + at,
                              state_.moment1 + at,
                              state_.moment2 + at,
                              0,
                              nullptr,
                              0,
                              model_->options.stochasticRounding,
                              model_->options.seed,
                              segment.index,
                              nullptr,
                              nullptr};
      runs_.push_back({offset, segment.group, shard});
    }
    Run& run = runs_.back();
    run.state.count += segment.elements;
    run.state.segmentCount += 1;
    table.push_back({run.state.count, segment.decay == pealZeroDecay ? group.weightDecay : 0.0});
    nextIndex = segment.index + segment.elements;
  }
}

Result<void> DeviceSteps::allocate(const Model& model, const std::shared_ptr<Device>& device,
                                   const OptimizerState& state) {
  model_ = &model;
  device_ = device;
  state_ = state;
  // A parameter lies in one bucket, so no buckets have more segments than there are parameters.
  const uint64_t most = model.layout.parameters.size() + 1;
  const auto allocate = [&](Arena& arena, const char* name, uint64_t bytes) {
    return arena.allocate(device, name, pealZeroWorking, ArenaMemory::Private, bytes, bytes);
  };
  PEAL_TRY(allocate(decay_, "table of decay", most * sizeof(pealAdamwSegment_t)));
  return allocate(controls_, "optimizer's control blocks", most * sizeof(pealAdamwControl_t));
}

Result<void> DeviceSteps::followLayout(const std::vector<std::vector<Segment>>& segments) {
  runs_.clear();
  firstRun_.clear();
  std::vector<pealAdamwSegment_t> table;
  for (size_t bucket = 0; bucket < segments.size(); ++bucket) {
    firstRun_.push_back(runs_.size());
    if (model_->layout.buckets[bucket].precision == Precision::Bf16) {
      addRuns(segments[bucket], model_->owned(model_->layout.buckets[bucket]), table);
    }
  }
  firstRun_.push_back(runs_.size());
  Run none{0, 0, {}};  // for a fused call where this rank owns nothing of the bucket
  none.state.beta1 = model_->groups.front().beta1;
  none.state.beta2 = model_->groups.front().beta2;
  none.state.epsilon = model_->groups.front().epsilon;
  runs_.push_back(none);
  control_.resize(runs_.size());
  PEAL_TRY(device_->upload(decay_.as<void>(), table.data(), table.size() * sizeof table[0]));
  const auto* ends = decay_.as<const pealAdamwSegment_t>();
  auto* control = controls_.as<pealAdamwControl_t>();
  for (Run& run : runs_) {
    run.state.segments = ends;
    run.state.control = control++;
    ends += run.state.segmentCount;
  }
  return {};
}

Result<void> DeviceSteps::beginUpdate(double learningRate, uint64_t step, double gradientScale, Does does) {
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Group& group = model_->groups[static_cast<size_t>(runs_[i].group)];
    control_[i] = {step - 1, learningRate * group.learningRateFactor, gradientScale,
                   does == Does::Nothing ? uint64_t{1} : uint64_t{0}, 0};
  }
  return device_->send(controls_.as<void>(), control_.data(), control_.size() * sizeof control_[0]);
}

pealAdamw_t DeviceSteps::fusedCall(size_t bucket, void* reduced) const {
  const bool hasRun = firstRun_[bucket] < firstRun_[bucket + 1];
  pealAdamw_t state = (hasRun ? runs_[firstRun_[bucket]] : runs_.back()).state;
  state.reduced = reduced;
  return state;
}

Result<void> DeviceSteps::update(size_t bucket, const uint16_t* gradient, uint16_t* weight) {
  for (size_t i = firstRun_[bucket]; i < firstRun_[bucket + 1]; ++i) {
    const Run& run = runs_[i];
    if (const pealResult_t code = pealAdamwStep(gradient + run.offset, weight + run.offset, &run.state,
                                                device_->number(), device_->caller());
        code != pealSuccess) {
      return Error{code,
                   fmt::format("the update of bucket {} failed: {}", bucket, pealGetLastError(nullptr))};
    }
  }
  return {};
}

}  // namespace peal::zero

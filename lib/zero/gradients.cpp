#include "lib/zero/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/zero/engine_fused.h"

namespace peal::zero {
namespace {

constexpr uint64_t kSumBytes = 4;

}  // namespace

Result<void> Gradients::allocate(const Model& model, Collectives& collectives, FusedStep& fused) {
  model_ = &model;
  collectives_ = &collectives;
  fused_ = &fused;
  const Layout& layout = model.layout;
  const bool full = model.stage() <= 1;
  PEAL_TRY(gradients_.allocate(collectives.device(), "gradients", pealZeroModelState, ArenaMemory::Shared,
                               (full ? layout.elements : layout.shardElements) * model.gradientBytes(),
                               model.plan.gradients));
  if (!full) {
    uint64_t elements = 0;
    for (const Precision precision : kPrecisions) {
      const Extent& of = layout.of[precision];
      slots_[precision].resize(std::min(static_cast<size_t>(model.options.bucketSlots), of.buckets));
      elements += slots_[precision].size() * of.largestBucket;
    }
    PEAL_TRY(buffers_.allocate(collectives.device(), "gradient buffers", pealZeroWorking, ArenaMemory::Shared,
                               elements * model.gradientBytes(), model.plan.gradientBuffers));
  }
  if (model.options.microBatches > 1) {
    const bool all = model.addsUpLocally() || model.stage() == 0;
    PEAL_TRY(accumulation_.allocate(
        collectives.device(), "accumulation", pealZeroWorking, ArenaMemory::Private,
        (all ? layout.elements : layout.shardElements) * kSumBytes, model.plan.accumulation));
  }
  if (model.replicas > 1) {
    PEAL_TRY(replicaSum_.allocate(model, collectives));
  }
  states_.assign(layout.parameters.size(), State::Idle);
  followLayout();
  return {};
}

void Gradients::followLayout() {
  buckets_.clear();
  buckets_.resize(model_->layout.buckets.size());
  sums_.clear();
  if (model_->addsUpReduced()) {
    for (const Bucket& bucket : model_->layout.buckets) {
      const Owned part = model_->owned(bucket);
      sums_.push_back({reducedPart(bucket), accumulation_.as<float>() + part.state, part.elements});
    }
  }
}

void Gradients::describeMemory(ArenaList& list) const {
  describe(gradients_, list);
  describe(accumulation_, list);
  describe(buffers_, list);
  replicaSum_.describeMemory(list);
}

// ---- one gradient ---------------------------------------------------------------------------------------

Result<Elements> Gradients::destination(size_t id) {
  const Parameter& parameter = model_->layout.parameters[id];
  if (states_[id] == State::Ready) {
    return Error{
        pealInvalidUsage,
        fmt::format("the gradient of parameter {} (\"{}\") was handed over already in this micro-batch", id,
                    parameter.name)};
  }
  if (!hasSlots()) {
    // Its reduction in the micro-batch before may still run.
    PEAL_TRY(collectives_->wait(buckets_[parameter.bucket].done));
  } else if (buckets_[parameter.bucket].slot < 0) {
    PEAL_TRY(takeSlot(parameter.bucket));
  }
  states_[id] = State::Asked;
  return address(parameter);
}

Elements Gradients::address(const Parameter& parameter) const {
  if (!hasSlots()) {
    return in(gradients_, parameter.begin);
  }
  const Bucket& bucket = model_->layout.buckets[parameter.bucket];
  const PerPrecision<Extent>& of = model_->layout.of;
  const uint64_t others = bucket.precision == Precision::Bf16
                              ? 0
                              : slots_[Precision::Bf16].size() * of[Precision::Bf16].largestBucket;
  const auto slot = static_cast<uint64_t>(buckets_[parameter.bucket].slot);
  return in(buffers_, others + slot * of[bucket.precision].largestBucket + (parameter.begin - bucket.begin));
}

Error Gradients::noSlotFor(size_t bucket) const {
  return {
      pealInvalidUsage,
      fmt::format(
          "all {} gradient buffers of its type hold buckets that are not complete, or wait for one that "
          "is not (the next to be reduced is "
          "bucket {} of {}, with {} of its {} parameters ready), so bucket {} has none; hand "
          "gradients over in about the reverse order of registration, or raise bucketSlots",
          slotsFor(bucket).size(), nextLaunch_, buckets_.size(),
          nextLaunch_ < buckets_.size() ? buckets_[nextLaunch_].ready : 0,
          nextLaunch_ < buckets_.size() ? model_->layout.buckets[nextLaunch_].parameters.size() : 0, bucket)};
}

// The free one that was given back longest ago.
std::vector<Gradients::Slot>::iterator Gradients::freeSlot(std::vector<Slot>& slots) {
  auto best = slots.end();
  for (auto slot = slots.begin(); slot != slots.end(); ++slot) {
    if (!slot->taken && (best == slots.end() || slot->launchedAt < best->launchedAt)) {
      best = slot;
    }
  }
  return best;
}

Result<void> Gradients::takeSlot(size_t bucket) {
  std::vector<Slot>& slots = slotsFor(bucket);
  auto best = freeSlot(slots);
  while (best == slots.end() && nextLaunch_ < buckets_.size() && isComplete(nextLaunch_) &&
         fused_->holdsBack(nextLaunch_)) {
    fused_->giveUp(nextLaunch_);
    PEAL_TRY(launchInOrder());
    best = freeSlot(slots);
  }
  if (best == slots.end()) {
    return noSlotFor(bucket);
  }
  PEAL_TRY(collectives_->wait(best->reduced));
  best->taken = true;
  buckets_[bucket].slot = static_cast<int>(best - slots.begin());
  return {};
}

Result<void> Gradients::ready(size_t id) {
  const Parameter& parameter = model_->layout.parameters[id];
  if (states_[id] != State::Asked) {
    return Error{
        pealInvalidUsage,
        fmt::format("the gradient of parameter {} (\"{}\") {} in this micro-batch", id, parameter.name,
                    states_[id] == State::Ready ? "was handed over already"
                                                : "was not asked for with pealZeroGradient")};
  }
  ++handedOver_;
  return complete(id);
}

Result<void> Gradients::complete(size_t id) {
  const Parameter& parameter = model_->layout.parameters[id];
  if (model_->addsUpLocally() && !isOnlyMicroBatch()) {
    PEAL_TRY(addUp(parameter, address(parameter)));
  }
  if (notesOrder_) {
    readyOrder_.push_back(id);
  }
  states_[id] = State::Ready;
  ++buckets_[parameter.bucket].ready;
  return model_->stage() == 3 ? Result<void>() : launchInOrder();
}

// fp32 over the micro-batches, put into the gradient at the last.
Pass Gradients::passOf(Elements values, float* sums, size_t count) const {
  const Pass::Kind kind = isLastMicroBatch() ? Pass::Kind::Finish
                          : microBatch_ == 0 ? Pass::Kind::Start
                                             : Pass::Kind::Add;
  return {kind, values, sums, count};
}

Result<void> Gradients::addUp(const Parameter& parameter, Elements values) {
  float* sums = accumulation_.as<float>() + parameter.begin;
  return collectives_->checked(
      "adding up gradients",
      collectives_->device()->pass(Queue::Caller, passOf(values, sums, parameter.elements)));
}

Result<void> Gradients::fillMissing(size_t unit) {
  const std::vector<size_t>& members = model_->layout.units[unit].parameters;
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    const size_t id = *member;
    if (states_[id] == State::Ready) {
      continue;
    }
    const Parameter& parameter = model_->layout.parameters[id];
    if (model_->options.missingGradients == pealZeroMissingIsError) {
      return Error{pealInvalidUsage,
                   fmt::format("parameter {} (\"{}\") of unit {} got no gradient in micro-batch {}, and "
                               "missingGradients asks for an error; call pealZeroGradientReady for it",
                               id, parameter.name, parameter.unit, microBatch_)};
    }
    const Result<Elements> values = destination(id);
    if (!values) {
      return values.error();
    }
    PEAL_TRY(collectives_->checked(
        "clearing a gradient",
        collectives_->device()->clear(values->data, parameter.elements * model_->gradientBytes())));
    ++missing_;
    PEAL_TRY(complete(id));
  }
  return {};
}

// ---- a bucket -------------------------------------------------------------------------------------------

Result<void> Gradients::launchInOrder() {
  if (model_->addsUpLocally() && !isLastMicroBatch()) {
    return {};
  }
  while (nextLaunch_ < buckets_.size()) {
    if (!isComplete(nextLaunch_) || fused_->holdsBack(nextLaunch_)) {
      break;
    }
    PEAL_TRY(launch(nextLaunch_));
    ++nextLaunch_;
  }
  return {};
}

Result<void> Gradients::reduceUnit(size_t unit) {
  for (const size_t bucket : model_->layout.units[unit].buckets) {
    PEAL_TRY(launch(bucket));
  }
  return {};
}

Result<void> Gradients::reduce(size_t index) {
  const Bucket& bucket = model_->layout.buckets[index];
  const int64_t name = model_->nameOf(index);
  if (model_->stage() == 0) {
    return collectives_->allReduceGradients({pealZeroAllReduce, name}, in(gradients_, bucket.begin).data,
                                            bucket.elements, typeOf(model_->gradientPrecision()));
  }
  const Elements from = addressOf(bucket);
  if (model_->replicas == 1) {
    return collectives_->reduceScatter({pealZeroReduceScatter, name}, from.data, reducedPart(bucket).data,
                                       bucket.counts, typeOf(from.precision));
  }
  if (!model_->addsUpInGroup() || isOnlyMicroBatch()) {
    return replicaSum_.reduce(index, from, reducedPart(bucket));
  }
  PEAL_TRY(replicaSum_.addUp(index, from, sums_[index].sums, microBatch_ == 0));
  return isLastMicroBatch() ? replicaSum_.finish(index, sums_[index].sums, reducedPart(bucket))
                            : Result<void>();
}

Result<void> Gradients::launch(size_t index) {
  BucketState& state = buckets_[index];
  const bool isFused = fused_->takes(index);
  PEAL_TRY(isFused ? fused_->run(index, addressOf(model_->layout.buckets[index])) : reduce(index));
  if (state.slot >= 0) {
    Slot& slot = slotsFor(index)[static_cast<size_t>(std::exchange(state.slot, -1))];
    slot.taken = false;
    slot.launchedAt = ++launches_;
    PEAL_TRY(collectives_->record(slot.reduced));
  }
  if (model_->addsUpReduced() && !model_->addsUpInGroup() && !isFused && !isOnlyMicroBatch()) {
    const Sum& sum = sums_[index];
    PEAL_TRY(collectives_->run(passOf(sum.values, sum.sums, sum.count)));
  }
  return collectives_->record(state.done);
}

void Gradients::endMicroBatch() {
  std::fill(states_.begin(), states_.end(), State::Idle);
  for (BucketState& bucket : buckets_) {
    bucket.ready = 0;
  }
  nextLaunch_ = 0;
  handedOver_ = 0;
  notesOrder_ = false;
  isWhole_ = isLastMicroBatch();
  ++microBatch_;
}

// ---- what came out ----------------------------------------------------------------------------------------

Elements Gradients::reducedPart(const Bucket& bucket) const {
  switch (model_->stage()) {
    case 0:
      return in(gradients_, bucket.begin);
    case 1:
      return in(gradients_, bucket.begin + bucket.ownBegin);
    default:
      return in(gradients_, bucket.shardBegin);
  }
}

Elements Gradients::owned(size_t bucket) const { return reducedPart(model_->layout.buckets[bucket]); }

Elements Gradients::block(size_t bucket) const {
  return owned(bucket).at(model_->stage() == 0 ? model_->layout.buckets[bucket].ownBegin : 0);
}

}  // namespace peal::zero

#include "lib/zero/weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/reduce/adamw.h"
#include "lib/zero/loops.h"

namespace peal::zero {
namespace {

const char* passName(pealZeroPass_t pass) { return pass == pealZeroForward ? "forward" : "backward"; }

}  // namespace

Result<void> Weights::allocate(const Model& model, Collectives& collectives) {
  model_ = &model;
  collectives_ = &collectives;
  const Layout& layout = model.layout;
  const bool full = model.stage() <= 2;
  uint64_t held = 0, unit = 0;
  for (const Precision precision : kPrecisions) {
    const Extent& of = layout.of[precision];
    held += bytesOf(precision) *
            (full ? of.elements + of.frozenElements : of.shardElements + of.frozenShardElements);
    unit += bytesOf(precision) * of.largestUnit;
  }
  PEAL_TRY(weights_.allocate(collectives.device(), "weights", pealZeroModelState, ArenaMemory::Shared, held,
                             model.plan.weights));
  if (!full) {
    slotTaken_.assign(static_cast<size_t>(model.options.unitSlots), false);
    PEAL_TRY(buffers_.allocate(collectives.device(), "unit buffers", pealZeroWorking, ArenaMemory::Shared,
                               slotTaken_.size() * unit, model.plan.unitBuffers));
  }
  units_.resize(layout.units.size());
  updated_.resize(layout.buckets.size());
  for (std::vector<int>& next : next_) {
    next.assign(layout.units.size(), kNone);
  }
  return {};
}

void Weights::describeMemory(ArenaList& list) const {
  describe(weights_, list);
  describe(buffers_, list);
}

Result<void> Weights::setInitial(const Bucket& bucket, Role role, uint64_t begin,
                                 std::span<const float> values) {
  const bool full = model_->stage() <= 2;
  const uint64_t heldBegin = full ? 0 : bucket.ownBegin;
  const uint64_t heldEnd = full ? bucket.elements : bucket.ownBegin + bucket.ownElements;
  const uint64_t from = std::max(begin, heldBegin);
  const uint64_t to = std::min(begin + values.size(), heldEnd);
  if (from >= to) {
    return {};
  }
  const Elements held = (full ? all(bucket) : ownedPart(bucket)).at(from - heldBegin);
  const float* first = values.data() + (from - begin);
  if (held.isWide()) {
    // Frozen values are those that checkpoints keep, at either precision.
    return collectives_->device()->write(held.fp32(), to - from, [&](float* written) {
      std::transform(first, first + (to - from), written,
                     [&](float value) { return role == Role::Frozen ? fromBf16(toBf16(value)) : value; });
    });
  }
  const bool split = role == Role::Trained && model_->options.master == pealZeroMasterRemainder;
  const auto round = split ? loops().splitWeights : loops().round;
  return collectives_->device()->write(held.bf16(), to - from,
                                       [&](uint16_t* rounded) { round(first, rounded, to - from); });
}

// ---- units ------------------------------------------------------------------------------------------------

Result<void> Weights::enter(size_t unit, pealZeroPass_t pass) {
  UnitState& state = units_[unit];
  if (state.open) {
    return Error{pealInvalidUsage,
                 fmt::format("unit {} is entered ({}) while it is open ({}); leave it first", unit,
                             passName(pass), passName(state.pass))};
  }
  if (model_->stage() == 3) {
    PEAL_TRY(enterSharded(unit, pass));
  } else {
    for (const size_t id : model_->layout.units[unit].parameters) {
      PEAL_TRY(collectives_->wait(updated_[model_->layout.parameters[id].bucket]));
    }
  }
  state.open = true;
  state.pass = pass;
  ++openUnits_;
  return {};
}

Result<void> Weights::leave(size_t unit, pealZeroPass_t pass) {
  UnitState& state = units_[unit];
  if (!state.open || state.pass != pass) {
    return Error{pealInvalidUsage,
                 state.open ? fmt::format("unit {} is left ({}) but it was entered {}", unit, passName(pass),
                                          passName(state.pass))
                            : fmt::format("unit {} is left ({}) but it is not open", unit, passName(pass))};
  }
  state.open = false;
  --openUnits_;
  if (pass == pealZeroBackward || !model_->layout.units[unit].kept) {
    free(state);
  }
  return model_->stage() == 3 && lastEntered_ != kNone && lastPass_ == pass ? prefetchAhead()
                                                                            : Result<void>();
}

Elements Weights::weights(size_t id) const {
  const Parameter& parameter = model_->layout.parameters[id];
  const Bucket& bucket = model_->layout.bucketOf(parameter);
  const Elements first =
      model_->stage() <= 2 ? all(bucket) : gathered(bucket, units_[static_cast<size_t>(parameter.unit)].slot);
  return first.at(parameter.begin - bucket.begin);
}

// The fp32 parts of all slots come before the bf16 ones, so that all are aligned.
Elements Weights::gathered(const Bucket& bucket, int slot) const {
  const PerPrecision<Extent>& of = model_->layout.of;
  const uint64_t wide = bytesOf(Precision::Fp32) * of[Precision::Fp32].largestUnit;
  const uint64_t size = bytesOf(bucket.precision);
  const uint64_t part = size * of[bucket.precision].largestUnit;
  const uint64_t parts = bucket.precision == Precision::Fp32 ? 0 : slotTaken_.size() * wide;
  return in(buffers_, parts + static_cast<uint64_t>(slot) * part + size * bucket.unitBegin, bucket);
}

Result<void> Weights::enterSharded(size_t unit, pealZeroPass_t pass) {
  UnitState& state = units_[unit];
  if (state.slot == kNone) {
    const int slot = slotForEntry();
    if (slot == kNone) {
      return Error{pealInvalidUsage,
                   fmt::format("all {} unit buffers are in use ({} units are open), so unit {} cannot be "
                               "gathered; leave units when they are done, or raise unitSlots",
                               slotTaken_.size(), openUnits_, unit)};
    }
    while (!mayIssue()) {
      PEAL_TRY(awaitOldest());
    }
    PEAL_TRY(gather(unit, slot));
  }
  state.prefetched = false;
  learnOrder(unit, pass);
  PEAL_TRY(prefetchAhead());
  return arrive(state);
}

// Issues the gathering of a unit that is not gathered yet.
Result<void> Weights::gather(size_t unit, int slot) {
  UnitState& state = units_[unit];
  const Layout& layout = model_->layout;
  const auto gatherPart = [&](const Bucket& part) {
    return collectives_->allGather(Among::Group, {pealZeroAllGather, static_cast<int64_t>(unit)},
                                   ownedPart(part).data, gathered(part, slot).data, part.counts,
                                   typeOf(part.precision));
  };
  for (const size_t trained : layout.units[unit].buckets) {
    PEAL_TRY(gatherPart(layout.buckets[trained]));
  }
  for (const size_t frozen : layout.units[unit].frozen) {
    PEAL_TRY(gatherPart(layout.frozen[frozen]));
  }
  slotTaken_[static_cast<size_t>(slot)] = true;
  state.slot = slot;
  state.issue = ++issued_;
  return collectives_->record(state.gathered);
}

// The stream runs in order: what was issued before has arrived, too.
Result<void> Weights::arrive(UnitState& unit) {
  PEAL_TRY(collectives_->wait(unit.gathered));
  arrived_ = std::max(arrived_, unit.issue);
  return {};
}

// A unit that gave up its buffer may have been gathered again since, so the oldest known may be a later one.
Result<void> Weights::awaitOldest() {
  UnitState* oldest = nullptr;
  for (UnitState& unit : units_) {
    if (unit.issue > arrived_ && (oldest == nullptr || unit.issue < oldest->issue)) {
      oldest = &unit;
    }
  }
  return arrive(*oldest);  // there is one, since the last that was issued has not arrived
}

// A pass is a run of different units entered in one direction.
void Weights::learnOrder(size_t unit, pealZeroPass_t pass) {
  if (lastEntered_ == kNone || lastPass_ != pass || entered_[unit]) {
    entered_.assign(units_.size(), false);
  } else {
    next_[pass][static_cast<size_t>(lastEntered_)] = static_cast<int>(unit);
  }
  entered_[unit] = true;
  lastEntered_ = static_cast<int>(unit);
  lastPass_ = pass;
}

// Issues the gathering of what came next last time. Never waits but for the unit that was entered last, whose
// turn it is anyway.
Result<void> Weights::prefetchAhead() {
  UnitState& current = units_[static_cast<size_t>(lastEntered_)];
  int next = lastEntered_;
  for (int ahead = 0; ahead < model_->options.prefetchDepth; ++ahead) {
    next = next_[lastPass_][static_cast<size_t>(next)];
    if (next == kNone || entered_[static_cast<size_t>(next)]) {
      break;
    }
    if (units_[static_cast<size_t>(next)].slot != kNone) {
      continue;
    }
    const int slot = freeSlot();
    if (slot != kNone && !mayIssue() && current.slot != kNone) {
      PEAL_TRY(arrive(current));
    }
    if (slot == kNone || !mayIssue()) {
      break;
    }
    PEAL_TRY(gather(static_cast<size_t>(next), slot));
    units_[static_cast<size_t>(next)].prefetched = true;
  }
  return {};
}

int Weights::freeSlot() const {
  const auto found = std::find(slotTaken_.begin(), slotTaken_.end(), false);
  return found == slotTaken_.end() ? kNone : static_cast<int>(found - slotTaken_.begin());
}

// A unit that was gathered ahead and did not come next gives its buffer to one that is needed now.
int Weights::slotForEntry() {
  if (freeSlot() == kNone) {
    UnitState* earliest = nullptr;
    for (UnitState& unit : units_) {
      if (unit.prefetched && (earliest == nullptr || unit.issue < earliest->issue)) {
        earliest = &unit;
      }
    }
    if (earliest != nullptr) {
      free(*earliest);
    }
  }
  return freeSlot();
}

void Weights::free(UnitState& unit) {
  if (unit.slot != kNone) {
    slotTaken_[static_cast<size_t>(unit.slot)] = false;
    unit.slot = kNone;
    unit.prefetched = false;
  }
}

void Weights::forgetGathered() {
  for (UnitState& unit : units_) {
    if (!unit.open) {
      free(unit);
    }
  }
  lastEntered_ = kNone;
}

std::vector<Plane> Weights::planes(Precision precision) const {
  return planesOf(weights_, bytesOf(precision));
}

void Weights::followLayout() {
  updated_.clear();
  updated_.resize(model_->layout.buckets.size());
}

// ---- the step ---------------------------------------------------------------------------------------------

Elements Weights::owned(size_t bucket) const { return ownedPart(model_->layout.buckets[bucket]); }

Elements Weights::ownedPart(const Bucket& bucket) const {
  switch (model_->stage()) {
    case 0:
      return all(bucket);
    case 3:
      return in(weights_, bucket.shardWeightsAt, bucket);
    default:
      return all(bucket).at(bucket.ownBegin);
  }
}

Result<void> Weights::gatherUpdated(size_t index, int counter) {
  if (model_->stage() == 0 || model_->stage() == 3) {
    return {};
  }
  const Bucket& bucket = model_->layout.buckets[index];
  PEAL_TRY(collectives_->allGather(Among::Group, {counter, model_->nameOf(index)}, owned(index).data,
                                   all(bucket).data, bucket.counts, typeOf(bucket.precision)));
  return markUpdated(index);
}

Result<void> Weights::read(const Parameter& parameter, std::span<const size_t> counts, void* values) {
  const Bucket& bucket = model_->layout.bucketOf(parameter);
  Device& device = *collectives_->device();
  if (model_->stage() <= 2) {
    if (parameter.role == Role::Trained) {
      PEAL_TRY(collectives_->wait(updated_[parameter.bucket]));
    }
    return device.download(values, all(bucket).at(parameter.begin - bucket.begin).data,
                           parameter.elements * bytesOf(bucket.precision));
  }
  const uint64_t skipped = parameter.begin - std::min(parameter.begin, bucket.begin + bucket.ownBegin);
  const uint64_t count = counts[static_cast<size_t>(collectives_->shard())];
  const Elements own = ownedPart(bucket).at(std::min(skipped, bucket.ownElements));
  std::vector<std::byte> room;
  const Collectives::Lending lending(*collectives_);
  const Result<const std::byte*> bytes =
      device.view<std::byte>(static_cast<const std::byte*>(own.data), count * bytesOf(own.precision), room);
  if (!bytes) {
    return collectives_->checked("reading values", bytes.error());
  }
  PEAL_TRY(collectives_->allGather(Among::Group, pealZeroInspect, *bytes, values, counts,
                                   typeOf(own.precision), Data::Host));
  return collectives_->finish();
}

}  // namespace peal::zero

// What happens between steps' ends: registration, units, gradients. seal() is in engine_seal.cpp, step() and
// read() in engine_step.cpp.
#include "lib/zero/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace peal::zero {
namespace {

Result<void> checkOptions(const pealZeroOptions_t& o) {
  if (o.size != sizeof o || o.magic != PEAL_ZERO_MAGIC) {
    return Error{
        pealInvalidArgument,
        fmt::format("the engine's options have size {} and magic {:#x}, not {} and {:#x}; start from "
                    "PEAL_ZERO_OPTIONS_INITIALIZER of this version's header",
                    o.size, o.magic, sizeof o, PEAL_ZERO_MAGIC)};
  }
  struct Range {
    const char* name;
    double value, least, most;
  };
  const double below1 = std::nextafter(1.0, 0.0);
  const std::array<Range, 13> ranges{{
      {"stage", static_cast<double>(o.stage), 0, 3},
      {"microBatches", static_cast<double>(o.microBatches), 1, 1e6},
      {"bucketBytes", static_cast<double>(o.bucketBytes), 1, 1e18},
      {"reduceEachMicroBatch", static_cast<double>(o.reduceEachMicroBatch), 0, 1},
      {"bucketSlots", static_cast<double>(o.bucketSlots), 0, 64},
      {"unitSlots", static_cast<double>(o.unitSlots), 0, 4096},
      {"prefetch", static_cast<double>(o.prefetch), 0, 1},
      {"missingGradients", static_cast<double>(o.missingGradients), 0, 1},
      {"clipNorm", o.clipNorm, 0, 1e30},
      {"beta1", o.beta1, 0, below1},
      {"beta2", o.beta2, 0, below1},
      {"epsilon", o.epsilon, 0, 1},
      {"weightDecay", o.weightDecay, 0, 1e6},
  }};
  for (const Range& range : ranges) {
    if (!(range.value >= range.least && range.value <= range.most)) {
      return Error{pealInvalidArgument, fmt::format("the engine's {} is {:g}; it must be from {:g} to {:g}",
                                                    range.name, range.value, range.least, range.most)};
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::make(pealComm_t comm, const pealZeroOptions_t& options) {
  PEAL_TRY(checkOptions(options));
  Result<std::unique_ptr<Collectives>> collectives = Collectives::make(comm);
  if (!collectives) {
    return collectives.error();
  }
  return std::unique_ptr<Engine>(new Engine(options, std::move(*collectives)));
}

Engine::Engine(const pealZeroOptions_t& options, std::unique_ptr<Collectives> collectives)
    : options_(options), collectives_(std::move(collectives)) {}

Engine::~Engine() {
  const bool midStep = sealed_ && (weights_.anyOpen() || gradients_.anyHandedOver());
  // Ranks that disagree found that out together: they are in step, and each gets its own sentence.
  if ((midStep && !rejected_) || collectives_->broken()) {
    collectives_->setTeardown(Teardown::Abort);
  }
}

// ---- checks
// ------------------------------------------------------------------------------------------------

Result<void> Engine::checkUsable() const {
  if (collectives_->broken()) {
    return Error{
        collectives_->broken()->code,
        fmt::format("the engine is out of step since an earlier failure and can only be destroyed: {}",
                    collectives_->broken()->message)};
  }
  if (rejected_) {
    return *rejected_;
  }
  return {};
}

Result<void> Engine::checkSealed() const {
  PEAL_TRY(checkUsable());
  if (!sealed_) {
    return Error{pealInvalidUsage, "the engine is not sealed: call pealZeroSeal first"};
  }
  return {};
}

Result<size_t> Engine::parameterIndex(int id) const {
  const size_t count = parameters().size();
  if (id < 0 || static_cast<size_t>(id) >= count) {
    return Error{pealInvalidArgument,
                 fmt::format("there is no parameter {}: {} are registered, from 0", id, count)};
  }
  return static_cast<size_t>(id);
}

Result<size_t> Engine::unitIndex(int unit) const {
  if (unit < 0 || static_cast<size_t>(unit) >= kept_.size()) {
    return Error{pealInvalidArgument,
                 fmt::format("there is no unit {}: {} are registered, from 0", unit, kept_.size())};
  }
  return static_cast<size_t>(unit);
}

// ---- registration
// ------------------------------------------------------------------------------------------

Result<int> Engine::addParameter(const char* name, uint64_t elements, int unit, pealZeroDecay_t decay) {
  PEAL_TRY(checkUsable());
  const auto refuse = [&](pealResult_t code, const std::string& why) {
    return Error{code, fmt::format("parameter {} (\"{}\", {} elements, unit {}) is refused: {}",
                                   registered_.size(), name, elements, unit, why)};
  };
  if (sealed_) {
    return refuse(pealInvalidUsage, "the engine is sealed");
  }
  if (*name == '\0') {
    return refuse(pealInvalidArgument, "its name is empty");
  }
  const auto sameName = [&](const Parameter& other) { return other.name == name; };
  if (std::any_of(registered_.begin(), registered_.end(), sameName)) {
    return refuse(pealInvalidArgument,
                  "another has this name; tied weights are one parameter, registered once");
  }
  uint64_t total = elements;
  for (const Parameter& parameter : registered_) {
    total += parameter.elements;
  }
  constexpr uint64_t kMostElements = 1'000'000'000'000'000;
  if (elements > kMostElements || total > kMostElements) {
    return refuse(pealInvalidArgument, "that is more than 10^15 elements in all");
  }
  const int lastUnit = registered_.empty() ? -1 : registered_.back().unit;
  if (unit != lastUnit + 1 && (unit != lastUnit || registered_.empty())) {
    return refuse(pealInvalidArgument,
                  registered_.empty()
                      ? std::string("the first parameter's unit is 0")
                      : fmt::format("after a parameter of unit {} comes one of {} or {}; a unit's parameters "
                                    "are registered together",
                                    lastUnit, lastUnit, lastUnit + 1));
  }
  if (decay != pealZeroDecay && decay != pealZeroNoDecay) {
    return refuse(pealInvalidArgument, fmt::format("decay is {}, neither 0 nor 1", static_cast<int>(decay)));
  }
  registered_.push_back({name, elements, unit, decay, 0, 0});
  initial_.push_back(nullptr);
  kept_.resize(static_cast<size_t>(unit) + 1, false);
  return static_cast<int>(registered_.size()) - 1;
}

Result<void> Engine::keepUnit(int unit) {
  PEAL_TRY(checkUsable());
  const Result<size_t> index = unitIndex(unit);
  if (!index) {
    return index.error();
  }
  if (sealed_) {
    return Error{pealInvalidUsage, fmt::format("unit {} cannot be kept: the engine is sealed", unit)};
  }
  kept_[*index] = true;
  return {};
}

Result<void> Engine::setInitial(int id, const float* values) {
  PEAL_TRY(checkUsable());
  const Result<size_t> index = parameterIndex(id);
  if (!index) {
    return index.error();
  }
  if (sealed_) {
    return Error{pealInvalidUsage,
                 fmt::format("the first values of parameter {} come too late: the engine is sealed", id)};
  }
  initial_[*index] = values;
  return {};
}

// ---- a micro-batch
// -------------------------------------------------------------------------------------------

Result<void> Engine::enter(int unit, pealZeroPass_t pass) {
  PEAL_TRY(checkSealed());
  const Result<size_t> index = unitIndex(unit);
  if (!index) {
    return index.error();
  }
  if (pass == pealZeroBackward) {
    if (gradients_.microBatch() == options_.microBatches) {
      return Error{
          pealInvalidUsage,
          fmt::format("unit {} is entered backward, but this step's {} micro-batches have ended: call "
                      "pealZeroStep",
                      unit, options_.microBatches)};
    }
    const size_t firstParameter = model_.layout.units[*index].first;
    if (gradients_.isReady(firstParameter)) {
      return Error{pealInvalidUsage,
                   fmt::format("unit {} is entered backward a second time in this micro-batch", unit)};
    }
  }
  return weights_.enter(*index, pass);
}

Result<void> Engine::leave(int unit, pealZeroPass_t pass) {
  PEAL_TRY(checkSealed());
  const Result<size_t> index = unitIndex(unit);
  if (!index) {
    return index.error();
  }
  if (pass == pealZeroBackward && weights_.isOpenFor(*index, pass)) {
    const Unit& place = model_.layout.units[*index];
    PEAL_TRY(gradients_.fillMissing(place.first, place.end));
    if (model_.stage() == 3) {
      PEAL_TRY(gradients_.reduceUnit(*index));
    }
  }
  return weights_.leave(*index, pass);
}

Result<const uint16_t*> Engine::weights(int id) {
  PEAL_TRY(checkSealed());
  const Result<size_t> index = parameterIndex(id);
  if (!index) {
    return index.error();
  }
  const Parameter& parameter = model_.layout.parameters[*index];
  if (!weights_.isOpen(static_cast<size_t>(parameter.unit))) {
    return Error{
        pealInvalidUsage,
        fmt::format("the weights of parameter {} (\"{}\") are asked for while its unit {} is not open; "
                    "enter it first",
                    id, parameter.name, parameter.unit)};
  }
  return weights_.weights(*index);
}

Result<uint16_t*> Engine::gradient(int id) {
  PEAL_TRY(checkSealed());
  const Result<size_t> index = parameterIndex(id);
  if (!index) {
    return index.error();
  }
  const Parameter& parameter = model_.layout.parameters[*index];
  if (!weights_.isOpenFor(static_cast<size_t>(parameter.unit), pealZeroBackward)) {
    return Error{
        pealInvalidUsage,
        fmt::format("the gradient of parameter {} (\"{}\") is asked for while its unit {} is not open "
                    "for backward; enter it first",
                    id, parameter.name, parameter.unit)};
  }
  return gradients_.destination(*index);
}

Result<void> Engine::gradientReady(int id) {
  PEAL_TRY(checkSealed());
  const Result<size_t> index = parameterIndex(id);
  if (!index) {
    return index.error();
  }
  return gradients_.ready(*index);
}

Result<void> Engine::endMicroBatch() {
  PEAL_TRY(checkSealed());
  if (weights_.anyOpen()) {
    return Error{pealInvalidUsage, "the micro-batch cannot end while a unit is open; leave all units first"};
  }
  if (gradients_.microBatch() == options_.microBatches) {
    return Error{pealInvalidUsage,
                 fmt::format("this step's {} micro-batches have ended already: call pealZeroStep",
                             options_.microBatches)};
  }
  // Units without backward, last first, as backward would have left them.
  for (size_t unit = model_.layout.units.size(); unit-- > 0;) {
    const Unit& place = model_.layout.units[unit];
    if (gradients_.isReady(place.first)) {
      continue;
    }
    PEAL_TRY(gradients_.fillMissing(place.first, place.end));
    if (model_.stage() == 3) {
      PEAL_TRY(gradients_.reduceUnit(unit));
    }
  }
  gradients_.endMicroBatch();
  weights_.forgetGathered();
  return {};
}

// ---- looking inside
// --------------------------------------------------------------------------------------------

Result<std::span<const pealZeroArena_t>> Engine::memory() const {
  PEAL_TRY(checkSealed());
  return std::span<const pealZeroArena_t>(memory_);
}

Result<void> Engine::setTrace(pealZeroTrace_t trace, void* user) {
  PEAL_TRY(checkUsable());
  return collectives_->setTrace(trace, user);
}

pealZeroCounters_t Engine::counters() const {
  pealZeroCounters_t counters = collectives_->counters();
  counters.steps = steps_;
  return counters;
}

}  // namespace peal::zero

// What happens between steps' ends: units, gradients. Registration is in engine_register.cpp, seal() in
// engine_seal.cpp, step() in engine_step.cpp, read() in engine_read.cpp.
#include "lib/zero/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace peal::zero {

Result<void> Engine::checkOptions(const pealZeroOptions_t& o) {
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
  const std::array<Range, 23> ranges{{
      {"stage", static_cast<double>(o.stage), 0, 3},
      {"microBatches", static_cast<double>(o.microBatches), 1, 1e6},
      {"bucketBytes", static_cast<double>(o.bucketBytes), 1, 1e18},
      {"reduceEachMicroBatch", static_cast<double>(o.reduceEachMicroBatch), 0, 1},
      {"bucketSlots", static_cast<double>(o.bucketSlots), 0, 64},
      {"unitSlots", static_cast<double>(o.unitSlots), 0, 4096},
      {"shardGroup", static_cast<double>(o.shardGroup), 0, 1e6},
      {"rebuildBuckets", static_cast<double>(o.rebuildBuckets), 0, 1},
      {"prefetchDepth", static_cast<double>(o.prefetchDepth), 0, 64},
      {"gathersInFlight", static_cast<double>(o.gathersInFlight), 0, 4096},
      {"reduceType", static_cast<double>(o.reduceType), 0, 1},
      {"missingGradients", static_cast<double>(o.missingGradients), 0, 1},
      {"skipNonFinite", static_cast<double>(o.skipNonFinite), 0, 1},
      {"convertWeights", static_cast<double>(o.convertWeights), 0, 1},
      {"convertOptimizer", static_cast<double>(o.convertOptimizer), 0, 1},
      {"initialValues", static_cast<double>(o.initialValues), 0, 1},
      {"clipNorm", o.clipNorm, 0, 1e30},
      {"beta1", o.beta1, 0, below1},
      {"beta2", o.beta2, 0, below1},
      {"epsilon", o.epsilon, kLeastEpsilon, 1},
      {"weightDecay", o.weightDecay, 0, 1e6},
      {"master", static_cast<double>(o.master), 0, 2},
      {"stochasticRounding", static_cast<double>(o.stochasticRounding), 0, 1},
  }};
  for (const Range& range : ranges) {
    if (!(range.value >= range.least && range.value <= range.most)) {
      return Error{pealInvalidArgument, fmt::format("the engine's {} is {}; it must be from {} to {}",
                                                    range.name, range.value, range.least, range.most)};
    }
  }
  if (o.master == pealZeroMasterRemainder && o.stochasticRounding != 0) {
    return Error{pealInvalidArgument,
                 "the engine's master is pealZeroMasterRemainder and stochasticRounding is 1: a remainder is "
                 "what a master is more than its weight rounded to nearest, so weights rounded at random "
                 "would need the fp32 masters; switch one of the two off"};
  }
  if (o.master == pealZeroMasterIsWeight &&
      (o.reduceType != pealZeroReduceFp32 || o.stochasticRounding != 0)) {
    return Error{pealInvalidArgument,
                 "the engine's master is pealZeroMasterIsWeight: weights are fp32, so gradients are, too "
                 "(reduceType is pealZeroReduceFp32), and nothing is rounded (stochasticRounding is 0)"};
  }
  if (o.stage == 0 && o.shardGroup != 0) {
    return Error{
        pealInvalidArgument,
        fmt::format("the engine's shardGroup is {} at stage 0, which shards nothing; choose stage 1, "
                    "2 or 3, or shardGroup 0",
                    o.shardGroup)};
  }
  return {};
}

Result<std::unique_ptr<Engine>> Engine::make(pealComm_t comm, const pealZeroOptions_t& options) {
  PEAL_TRY(checkOptions(options));
  Result<std::unique_ptr<Collectives>> collectives = Collectives::make(comm, options.shardGroup);
  if (!collectives) {
    return collectives.error();
  }
  return std::unique_ptr<Engine>(new Engine(options, std::move(*collectives)));
}

Engine::Engine(const pealZeroOptions_t& options, std::unique_ptr<Collectives> collectives)
    : options_(options),
      groups_{{1.0, options.beta1, options.beta2, options.epsilon, options.weightDecay}},
      collectives_(std::move(collectives)) {}

Engine::~Engine() {
  const bool midStep = sealed_ && (weights_.anyOpen() || gradients_.anyHandedOver());
  // Ranks that disagree found that out together: they are in step, and each gets its own sentence.
  if ((midStep && !rejected_) || collectives_->broken()) {
    collectives_->setTeardown(Teardown::Abort);
  }
}

void Engine::interrupted(const char* function, const Error& error) {
  if (isSealing_) {
    (void)collectives_->checked(function, error);
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
    return Error{rejected_->code,
                 fmt::format("the engine has failed and can only be destroyed; the first error was: {}",
                             rejected_->message)};
  }
  return checkNotFilling();
}

Result<void> Engine::checkNotFilling() const {
  if (isFilling_) {
    return Error{pealInvalidUsage, "the engine is called by the function that writes its first values"};
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

Result<size_t> Engine::trainedIndex(int id) const {
  const Result<size_t> index = parameterIndex(id);
  if (!index) {
    return index.error();
  }
  const Parameter& parameter = parameters()[*index];
  if (parameter.role == Role::Frozen) {
    return Error{pealInvalidUsage,
                 fmt::format("parameter {} (\"{}\") is frozen: it has no gradient", id, parameter.name)};
  }
  if (parameter.role == Role::Alias) {
    const Parameter& named = parameters()[parameter.tiedTo];
    return Error{pealInvalidUsage,
                 fmt::format("parameter {} (\"{}\") is another name for parameter {} (\"{}\"), which has the "
                             "one gradient: add up the gradients of all uses in fp32 and hand the sum over "
                             "as that of parameter {}",
                             id, parameter.name, parameter.tiedTo, named.name, parameter.tiedTo)};
  }
  return *index;
}

Result<size_t> Engine::unitIndex(int unit) const {
  if (unit < 0 || static_cast<size_t>(unit) >= kept_.size()) {
    return Error{pealInvalidArgument,
                 fmt::format("there is no unit {}: {} are registered, from 0", unit, kept_.size())};
  }
  return static_cast<size_t>(unit);
}

Result<void> Engine::setStream(pealStream_t stream) {
  PEAL_TRY(checkUsable());
  if (sealed_) {
    return Error{pealInvalidUsage, "the caller's stream comes too late: the engine is sealed"};
  }
  return collectives_->device()->setCaller(stream);
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
    if (gradients_.isWhole()) {
      return Error{
          pealInvalidUsage,
          fmt::format("unit {} is entered backward, but this step's {} micro-batches have ended: call "
                      "pealZeroStep",
                      unit, gradients_.microBatch())};
    }
    if (closed_[*index]) {
      return Error{pealInvalidUsage,
                   fmt::format("unit {} is entered backward a second time in this micro-batch", unit)};
    }
  }
  const bool mayBeChanged = fused_.isActive() ? closed_[*index] : fused_.ranBuckets() > 0;
  if (mayBeChanged && !model_.layout.units[*index].parameters.empty()) {
    return Error{
        pealInvalidUsage,
        fmt::format("unit {} is entered forward after backward and before pealZeroStep, but the step was "
                    "announced and may have changed its weights; do that after the step, or do not "
                    "announce it",
                    unit)};
  }
  return weights_.enter(*index, pass);
}

Result<void> Engine::leave(int unit, pealZeroPass_t pass) {
  PEAL_TRY(checkSealed());
  const Result<size_t> index = unitIndex(unit);
  if (!index) {
    return index.error();
  }
  const bool closes = pass == pealZeroBackward && weights_.isOpenFor(*index, pass);
  if (closes) {
    PEAL_TRY(gradients_.fillMissing(*index));
  }
  // Its buffer is free now: the gathering that may go into it comes before the reduction of its gradients.
  PEAL_TRY(weights_.leave(*index, pass));
  return closes ? closeBackward(*index) : Result<void>();
}

// Its gradients are complete.
Result<void> Engine::closeBackward(size_t unit) {
  if (model_.stage() == 3) {
    PEAL_TRY(gradients_.reduceUnit(unit));
  }
  closed_[unit] = true;
  fused_.unitLeft(unit);
  return model_.stage() == 3 ? Result<void>() : gradients_.launchInOrder();
}

Result<void*> Engine::weights(int id, Precision asked) {
  PEAL_TRY(checkSealed());
  const Result<size_t> index = parameterIndex(id);
  if (!index) {
    return index.error();
  }
  const Parameter& parameter = model_.layout.parameters[*index];
  if (asked != parameter.precision) {
    return Error{pealInvalidUsage,
                 fmt::format("the weights of parameter {} (\"{}\") are {}", id, parameter.name,
                             asked == Precision::Bf16 ? "fp32: call pealZeroWeightsFp32"
                                                      : "bf16: call pealZeroWeights")};
  }
  if (!weights_.isOpen(static_cast<size_t>(parameter.unit))) {
    return Error{
        pealInvalidUsage,
        fmt::format("the weights of parameter {} (\"{}\") are asked for while its unit {} is not open; "
                    "enter it first",
                    id, parameter.name, parameter.unit)};
  }
  return weights_.weights(*index).data;
}

Result<void*> Engine::gradient(int id, Precision asked) {
  PEAL_TRY(checkSealed());
  if (asked != model_.gradientPrecision()) {
    return Error{pealInvalidUsage, asked == Precision::Bf16
                                       ? "gradients are fp32 (reduceType is pealZeroReduceFp32): call "
                                         "pealZeroGradientFp32"
                                       : "gradients are bf16 (reduceType is pealZeroReduceBf16): call "
                                         "pealZeroGradient"};
  }
  const Result<size_t> index = trainedIndex(id);
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
  const Result<Elements> values = gradients_.destination(*index);
  if (!values) {
    return values.error();
  }
  return values->data;
}

Result<void> Engine::gradientReady(int id) {
  PEAL_TRY(checkSealed());
  const Result<size_t> index = trainedIndex(id);
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
  if (gradients_.isWhole()) {
    return Error{pealInvalidUsage,
                 fmt::format("this step's {} micro-batches have ended already: call pealZeroStep",
                             gradients_.microBatch())};
  }
  // Units without backward, last first, as backward would have left them.
  for (size_t unit = model_.layout.units.size(); unit-- > 0;) {
    if (!closed_[unit]) {
      PEAL_TRY(gradients_.fillMissing(unit));
      PEAL_TRY(closeBackward(unit));
    }
  }
  closed_.assign(closed_.size(), false);
  gradients_.endMicroBatch();
  weights_.forgetGathered();
  return {};
}

bool Engine::microBatchHasBegun() const {
  return std::find(closed_.begin(), closed_.end(), true) != closed_.end() || gradients_.anyHandedOverNow();
}

Result<void> Engine::setNoSync(bool on) {
  PEAL_TRY(checkSealed());
  if (options_.microBatches == 1) {
    return Error{pealInvalidUsage,
                 "this engine has nowhere to add up micro-batches: it was made with microBatches 1. Make it "
                 "with 2 or more"};
  }
  if (gradients_.isWhole() || microBatchHasBegun()) {
    return Error{pealInvalidUsage,
                 fmt::format("whether micro-batch {} is its step's last is said {}; call pealZeroSetNoSync "
                             "between micro-batches, before the first gradient of one",
                             gradients_.microBatch(),
                             gradients_.isWhole() ? "after the last has ended (call pealZeroStep)"
                                                  : "when it has gradients already")};
  }
  gradients_.setNoSync(on);
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

// pealZeroStep: wait for the reductions bucket by bucket while adding up squares; one small all-reduce of the
// exact sum, the non-finite flag and the tokens; then AdamW bucket by bucket, each followed by the gathering
// of its new weights. Every decision is made from the all-reduced numbers, so it is the same on every rank.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/reduce/adamw.h"
#include "lib/zero/engine.h"

namespace peal::zero {
namespace {

constexpr double kNormEpsilon = 1e-6;
constexpr uint64_t kMostTokens = uint64_t{1} << 42;  // per rank and step; 2^20 ranks' sum fits in int64

// Places in the control message after the limbs.
constexpr size_t kNonFinite = kSquareLimbs;
constexpr size_t kTokens = kSquareLimbs + 1;
constexpr size_t kRate = kSquareLimbs + 2;
static_assert(kRate + kRateWords == kControlWords);

}  // namespace

Result<void> Engine::checkNumbers(double learningRate, uint64_t localTokens) {
  if (!(learningRate >= 0 && learningRate <= std::numeric_limits<float>::max())) {
    return Error{pealInvalidArgument,
                 fmt::format("the learning rate is {}; it must be finite and not negative", learningRate)};
  }
  if (localTokens > kMostTokens) {
    return Error{pealInvalidArgument,
                 fmt::format("{} tokens on one rank are more than 2^42 in one step", localTokens)};
  }
  return {};
}

// ---- announced steps
// ---------------------------------------------------------------------------------------

Result<void> Engine::expectStep(double learningRate, uint64_t localTokens) {
  PEAL_TRY(checkSealed());
  PEAL_TRY(checkNumbers(learningRate, localTokens));
  if (gradients_.isWhole() || (gradients_.isLastMicroBatch() && microBatchHasBegun())) {
    return Error{
        pealInvalidUsage,
        fmt::format("step {} is announced {}; call pealZeroExpectStep before the first gradient of its "
                    "last micro-batch",
                    steps_ + 1,
                    gradients_.isWhole() ? "after its last micro-batch"
                                         : "when gradients of its last micro-batch are ready")};
  }
  fused_.announce({learningRate, localTokens}, updates_);
  return {};
}

Result<void> Engine::checkAnnounced(double learningRate, uint64_t localTokens) const {
  const std::optional<FusedStep::Announcement>& announced = fused_.announced();
  if (announced && (announced->learningRate != learningRate || announced->localTokens != localTokens)) {
    return Error{
        pealInvalidUsage,
        fmt::format("step {} was announced with learning rate {} and {} tokens of rank {}, and is made "
                    "with {} and {}; {} of its {} buckets are updated already. Make the step that was "
                    "announced",
                    steps_ + 1, announced->learningRate, announced->localTokens, collectives_->rank(),
                    learningRate, localTokens, fused_.ranBuckets(), model_.layout.buckets.size())};
  }
  return {};
}

Result<pealZeroFusedStatus_t> Engine::fusedStatus() const {
  PEAL_TRY(checkSealed());
  return pealZeroFusedStatus_t{model_.layout.buckets.size(), fused_.fusedBuckets(), fused_.reason().c_str()};
}

// ---- the step
// ----------------------------------------------------------------------------------------------

std::string Engine::notWhole() const {
  if (gradients_.isByNumber()) {
    return fmt::format("the step has {} of {} micro-batches: call pealZeroEndMicroBatch after each",
                       gradients_.microBatch(), options_.microBatches);
  }
  return fmt::format(
      "the step has {} micro-batches, none of which was to be its last; end one outside of "
      "pealZeroSetNoSync(zero, 1)",
      gradients_.microBatch());
}

Result<pealZeroReport_t> Engine::step(double learningRate, uint64_t localTokens) {
  PEAL_TRY(checkSealed());
  PEAL_TRY(checkNumbers(learningRate, localTokens));
  PEAL_TRY(checkAnnounced(learningRate, localTokens));
  if (!gradients_.isWhole()) {
    return Error{pealInvalidUsage, notWhole()};
  }
  if (weights_.anyOpen()) {
    return Error{pealInvalidUsage, "the step cannot begin while a unit is open; leave all units first"};
  }
  weights_.forgetGathered();
  const Result<Totals> totals = addUpRanks(learningRate, localTokens);
  if (!totals) {
    return totals.error();
  }

  pealZeroReport_t report{};
  report.tokens = totals->tokens;
  report.skipped = totals->nonFinite && options_.skipNonFinite != 0 ? 1 : 0;
  report.gradientNorm = totals->nonFinite ? std::numeric_limits<double>::quiet_NaN()
                                          : std::sqrt(totals->squares) / static_cast<double>(totals->tokens);
  report.clipFactor = 1;
  report.fusedBuckets = fused_.ranBuckets();
  if (options_.clipNorm > 0 && !totals->nonFinite) {
    report.clipFactor = std::min(1.0, options_.clipNorm / (report.gradientNorm + kNormEpsilon));
  }
  if (report.skipped == 0) {
    ++updates_;
    PEAL_TRY(update(learningRate, report.clipFactor / static_cast<double>(totals->tokens)));
  }
  // With one rank nothing is sent; at stage 3 buckets are units.
  const bool rebuilds = options_.rebuildBuckets != 0 && model_.stage() <= 2 && collectives_->ranks() > 1;
  if (steps_ == 0 && rebuilds) {
    PEAL_TRY(rebuildBuckets());
  }
  report.step = updates_;
  report.missingGradients = gradients_.takeMissing();
  report.communicationSeconds = collectives_->communicationSeconds() -
                                std::exchange(communicationBefore_, collectives_->communicationSeconds());
  report.waitSeconds = collectives_->waitSeconds() - std::exchange(waitBefore_, collectives_->waitSeconds());
  gradients_.beginStep();
  fused_.endStep();
  ++steps_;
  return report;
}

Result<Engine::Totals> Engine::addUpRanks(double learningRate, uint64_t localTokens) {
  SquareSum squares;
  Device& device = *collectives_->device();
  for (size_t bucket = 0; bucket < model_.layout.buckets.size(); ++bucket) {
    PEAL_TRY(gradients_.waitReduced(bucket));
    if (fused_.didSquares(bucket)) {
      continue;
    }
    // Replicas own the same elements: each adds up its share of them, which the exact sum allows.
    const uint64_t own = model_.layout.buckets[bucket].ownElements;
    const uint64_t from =
        own * static_cast<uint64_t>(model_.replica) / static_cast<uint64_t>(model_.replicas);
    const uint64_t to =
        own * (static_cast<uint64_t>(model_.replica) + 1) / static_cast<uint64_t>(model_.replicas);
    PEAL_TRY(collectives_->checked("adding up squares",
                                   device.addSquares(gradients_.block(bucket).at(from), to - from, squares)));
  }
  PEAL_TRY(collectives_->checked("adding up squares", device.finishSquares(squares)));
  squares.add(fused_.squares());
  const std::array<int64_t, kSquareLimbs> limbs = squares.limbs();
  std::copy(limbs.begin(), limbs.end(), control_.begin());
  control_[kNonFinite] = squares.nonFinite();
  control_[kTokens] = static_cast<int64_t>(localTokens);
  stateRate(learningRate, &control_[kRate]);
  PEAL_TRY(collectives_->allReduceControl(control_.data(), control_.size()));
  PEAL_TRY(collectives_->finish());

  if (!ratesAgree(&control_[kRate], collectives_->ranks())) {
    rejected_ = Error{pealInvalidUsage,
                      fmt::format("the ranks passed different learning rates to step {}; rank {} passed {}",
                                  steps_ + 1, collectives_->rank(), learningRate)};
    return *rejected_;
  }
  if (control_[kTokens] == 0) {
    rejected_ =
        Error{pealInvalidArgument,
              fmt::format("no rank had a token in step {}: the mean gradient is not defined", steps_ + 1)};
    return *rejected_;
  }
  return Totals{squareSumValue({control_.data(), kSquareLimbs}), control_[kNonFinite] != 0,
                static_cast<uint64_t>(control_[kTokens])};
}

// What the fused step has not done, in the order in which the next forward pass needs the weights: the last
// bucket has the first parameters.
Result<void> Engine::update(double learningRate, double gradientScale) {
  PEAL_TRY(
      collectives_->checked("the update", optimizer_.beginUpdate(learningRate, updates_, gradientScale)));
  for (size_t bucket = model_.layout.buckets.size(); bucket-- > 0;) {
    if (fused_.did(bucket)) {
      continue;
    }
    collectives_->begin(Operation::Update);
    PEAL_TRY(collectives_->checked(
        "the update", optimizer_.update(bucket, gradients_.owned(bucket), weights_.owned(bucket))));
    PEAL_TRY(weights_.gatherUpdated(bucket));
  }
  return {};
}

}  // namespace peal::zero

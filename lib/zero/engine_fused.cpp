#include "lib/zero/engine_fused.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "lib/zero/gradients.h"
#include "lib/zero/optimizer.h"
#include "lib/zero/weights.h"

namespace peal::zero {
namespace {

// Places in the announcement's small all-reduce.
constexpr size_t kAnnouncedTokens = 0;
constexpr size_t kAnnouncedRate = 1;
static_assert(kAnnouncedRate + kRateWords == kAnnouncedWords);

constexpr int kRatePartBits = 22;  // the squares of 2^17 ranks still fit a word
static_assert((kRateWords - 1) * kRatePartBits >= 64);

}  // namespace

// Parts of the number's bits, and the sum of the parts' squares.
void stateRate(double learningRate, int64_t* words) {
  auto bits = std::bit_cast<uint64_t>(learningRate);
  int64_t& squares = words[kRateWords - 1] = 0;
  for (size_t i = 0; i + 1 < kRateWords; ++i, bits >>= kRatePartBits) {
    words[i] = static_cast<int64_t>(bits & ((uint64_t{1} << kRatePartBits) - 1));
    squares += words[i] * words[i];
  }
}

// N times a sum of squares is at least the square of the sum, and that only if all N are the same (Cauchy and
// Schwarz): so for each part, and for all parts together.
bool ratesAgree(const int64_t* sums, int ranks) {
  __int128 least = 0;
  for (size_t i = 0; i + 1 < kRateWords; ++i) {
    least += static_cast<__int128>(sums[i]) * sums[i];
  }
  return least == static_cast<__int128>(sums[kRateWords - 1]) * ranks;
}

// ---- which buckets --------------------------------------------------------------------------------------

void FusedStep::prepare(const Model& model, Collectives& collectives, Gradients& gradients, Weights& weights,
                        Optimizer& optimizer) {
  model_ = &model;
  collectives_ = &collectives;
  gradients_ = &gradients;
  weights_ = &weights;
  optimizer_ = &optimizer;
  const size_t buckets = model.layout.buckets.size();
  fuses_.assign(buckets, false);
  fusedBuckets_ = 0;
  parts_.clear();
  unitsBuckets_.assign(model.layout.units.size(), {});
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    parts_.push_back({this, bucket});
    for (const size_t id : model.layout.buckets[bucket].parameters) {
      std::vector<size_t>& ofUnit = unitsBuckets_[static_cast<size_t>(model.layout.parameters[id].unit)];
      if (ofUnit.empty() || ofUnit.back() != bucket) {
        ofUnit.push_back(bucket);
      }
    }
  }
  reason_ = whyNone();
  if (reason_.empty()) {
    chooseBuckets();
  }
  endStep();
}

std::string FusedStep::whyNone() const {
  const pealZeroOptions_t& options = model_->options;
  if (options.stage == 0) {
    return "at stage 0 every rank updates everything, so no weights are gathered";
  }
  if (options.stage == 3) {
    return "at stage 3 weights are gathered when a unit is entered, not after their update";
  }
  if (model_->replicas > 1) {
    return fmt::format("gradients of {} shard groups are added up in two collectives", model_->replicas);
  }
  const PerPrecision<Extent>& of = model_->layout.of;
  if (model_->gradientPrecision() != Precision::Bf16 ||
      (of[Precision::Bf16].buckets == 0 && of[Precision::Fp32].buckets > 0)) {
    return "gradients or weights are fp32, and only bf16 is fused";
  }
  if (!isOnHost() && options.master != pealZeroMasterFp32) {
    return "masters are remainders, and on GPUs only fp32 masters are fused";
  }
  if (!isOnHost() && model_->addsUpReduced()) {
    return "micro-batches are added up after their reduction, which GPUs do not fuse";
  }
  if (options.clipNorm > 0) {
    return fmt::format("clipNorm is {:g}, and the norm needs the whole gradient first", options.clipNorm);
  }
  if (options.skipNonFinite != 0) {
    return "skipNonFinite is 1, and whether a step is skipped needs the whole gradient first";
  }
  return {};
}

bool FusedStep::isOnHost() const { return collectives_->device()->isHost(); }

// On a GPU a bucket is fused if one call updates any part of it: one group, and numbers that go on where
// rounding is random.
bool FusedStep::isOneCall(size_t bucket) const {
  const Bucket& described = model_->layout.buckets[bucket];
  const std::vector<Segment> segments = updateSegments(model_->layout, described, 0, described.elements);
  for (size_t i = 1; i < segments.size(); ++i) {
    const Segment& before = segments[i - 1];
    const bool goesOn = segments[i].index == before.index + before.elements;
    if (segments[i].group != before.group || (model_->options.stochasticRounding != 0 && !goesOn)) {
      return false;
    }
  }
  return true;
}

std::pair<int, int> FusedStep::unitsOf(size_t bucket) const {
  const std::vector<size_t>& members = model_->layout.buckets[bucket].parameters;
  const auto unit = [&](size_t id) { return model_->layout.parameters[id].unit; };
  const auto [least, most] = std::minmax_element(
      members.begin(), members.end(), [&](size_t one, size_t other) { return unit(one) < unit(other); });
  return {unit(*least), unit(*most)};
}

// Stages 1 and 2.
void FusedStep::chooseBuckets() {
  const auto isNarrow = [&](size_t bucket) {
    return model_->layout.buckets[bucket].precision == Precision::Bf16;
  };
  for (size_t bucket = 0; bucket < fuses_.size(); ++bucket) {
    fuses_[bucket] = isNarrow(bucket) && (isOnHost() || isOneCall(bucket));
  }
  const auto count = [&] { return static_cast<size_t>(std::count(fuses_.begin(), fuses_.end(), true)); };
  const size_t narrow = model_->layout.of[Precision::Bf16].buckets;
  fusedBuckets_ = count();
  if (narrow < fuses_.size()) {
    reason_ = fmt::format("{} of {} buckets have fp32 weights, and only bf16 is fused",
                          fuses_.size() - narrow, fuses_.size());
  }
  if (fusedBuckets_ < narrow) {
    reason_ = fmt::format(
        "{} of {} buckets have bf16 weights and parameters of one group (and, where rounding is random, of "
        "consecutive numbers), as GPUs fuse them",
        fusedBuckets_, fuses_.size());
  }
  const size_t possible = fusedBuckets_;
  if (model_->stage() == 2) {
    dropWhatHoldsBuffers();
  }
  fusedBuckets_ = count();
  if (fusedBuckets_ < possible) {
    reason_ = fmt::format(
        "{} of {} buckets are fused: the others would hold the {} gradient buffers of stage 2 "
        "until their unit is left. Raise bucketSlots or bucketBytes",
        fusedBuckets_, fuses_.size(), model_->options.bucketSlots);
  }
}

// At stage 2 a fused bucket keeps its buffer until its units are left, so a unit may have one fewer of them
// than there are buffers (but one): those whose gradients come last, because buckets go in order. Buckets of
// fp32 weights have buffers of their own.
void FusedStep::dropWhatHoldsBuffers() {
  const auto most = static_cast<size_t>(std::max(1, model_->options.bucketSlots - 1));
  for (const std::vector<size_t>& ofUnit : unitsBuckets_) {
    size_t later = 0;
    for (auto bucket = ofUnit.rbegin(); bucket != ofUnit.rend(); ++bucket) {
      const bool isNarrow = model_->layout.buckets[*bucket].precision == Precision::Bf16;
      fuses_[*bucket] = fuses_[*bucket] && later < most;
      later += isNarrow ? 1 : 0;
    }
  }
  // Nor may one wait for a unit that is left after those of later buckets.
  int latest = -1;
  for (size_t bucket = fuses_.size(); bucket-- > 0;) {
    if (model_->layout.buckets[bucket].precision == Precision::Bf16) {
      const auto [first, last] = unitsOf(bucket);
      fuses_[bucket] = fuses_[bucket] && first >= latest;
      latest = std::max(latest, last);
    }
  }
}

// ---- a step ---------------------------------------------------------------------------------------------

void FusedStep::announce(const Announcement& announcement, uint64_t updates) {
  announced_ = announcement;
  updates_ = updates;
}

bool FusedStep::isActive() const { return announced_ && fusedBuckets_ > 0 && gradients_->isLastMicroBatch(); }

void FusedStep::unitLeft(size_t unit) {
  if (gradients_->isLastMicroBatch()) {
    for (const size_t bucket : unitsBuckets_[unit]) {
      --openUnits_[bucket];
    }
  }
}

void FusedStep::giveUp(size_t bucket) {
  parts_[bucket].late = true;
  reason_ = fmt::format(
      "bucket {} of {} was last not fused, since a later one needed a gradient buffer, which buckets give "
      "back "
      "in order, before all units that use its weights were left. Leave units when they are done, or raise "
      "bucketSlots",
      bucket, fuses_.size());
}

Result<void> FusedStep::run(size_t bucket, Elements from) {
  if (ran_ == 0) {
    PEAL_TRY(begin());
  }
  Part& part = parts_[bucket];
  part.ran = true;
  part.sums = gradients_->sumsOf(bucket);
  ++ran_;
  const Bucket& described = model_->layout.buckets[bucket];
  void* const weights = weights_->all(described).data;
  const int64_t name = model_->nameOf(bucket);
  if (isOnHost()) {
    PEAL_TRY(collectives_->reduceApplyGather(name, from.data, weights, described.counts,
                                             typeOf(from.precision), &FusedStep::apply, &part));
  } else {
    // The sums stay where a reduction would have left them: the step adds up their squares.
    PEAL_TRY(collectives_->reduceAdamwGather(name, from.data, weights, described.counts,
                                             optimizer_->fusedCall(bucket, gradients_->owned(bucket).data)));
  }
  return weights_->markUpdated(bucket);
}

// What the ranks have announced, added up. On host memory the updates wait for it in the stream and the
// caller does not; on GPUs the caller waits, whose device goes on.
Result<void> FusedStep::begin() {
  control_[kAnnouncedTokens] = static_cast<int64_t>(announced_->localTokens);
  stateRate(announced_->learningRate, &control_[kAnnouncedRate]);
  PEAL_TRY(collectives_->allReduceControl(control_.data(), control_.size()));
  if (!isOnHost()) {
    return collectives_->checked("the update", beginUpdate());
  }
  return collectives_->run(
      [](void* step) {
        auto& self = *static_cast<FusedStep*>(step);
        // On host memory it only computes.
        self.agreed_ = self.beginUpdate() && self.agreed_;
      },
      this);
}

// On host memory on the stream's thread. Ranks that do not agree leave the weights as they are; the step says
// why.
Result<void> FusedStep::beginUpdate() {
  const int64_t tokens = control_[kAnnouncedTokens];
  agreed_ = tokens != 0 && ratesAgree(&control_[kAnnouncedRate], collectives_->ranks());
  return optimizer_->beginUpdate(announced_->learningRate, updates_ + 1,
                                 1 / static_cast<double>(std::max<int64_t>(tokens, 1)),
                                 agreed_ ? Optimizer::Does::Update : Optimizer::Does::Nothing);
}

// On the stream's thread: a piece of this rank's block. Where micro-batches are added up after their
// reduction this is the last one's.
void FusedStep::apply(void* argument, void* values, size_t first, size_t count) {
  const auto& part = *static_cast<const Part*>(argument);
  FusedStep& step = *part.step;
  const Elements gradient{values, Precision::Bf16};
  if (part.sums != nullptr) {
    finishSums(gradient, part.sums + first, count);
  }
  step.squares_.add(gradient.bf16(), count);
  // Weights from masters take the gradients' place; where they are read, or stay, it is theirs.
  const bool isFromMaster = step.agreed_ && step.model_->options.master == pealZeroMasterFp32;
  const Elements weights = isFromMaster ? gradient : step.weights_->owned(part.bucket).at(first);
  if (step.agreed_) {
    // On host memory it only computes.
    (void)step.optimizer_->updatePiece(part.bucket, first, count, gradient, weights);
  }
  if (!isFromMaster) {
    std::copy_n(weights.bf16(), count, gradient.bf16());
  }
}

void FusedStep::endStep() {
  announced_.reset();
  ran_ = 0;
  squares_ = SquareSum();
  agreed_ = false;
  for (Part& part : parts_) {
    part.ran = false;
    part.late = false;
  }
  openUnits_.assign(fuses_.size(), 0);
  for (const std::vector<size_t>& ofUnit : unitsBuckets_) {
    for (const size_t bucket : ofUnit) {
      ++openUnits_[bucket];
    }
  }
}

}  // namespace peal::zero

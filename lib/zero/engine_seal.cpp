// pealZeroSeal: lay out, allocate, agree, and give every rank rank 0's values.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "lib/zero/digest.h"
#include "lib/zero/engine.h"
#include "lib/zero/planner.h"

namespace peal::zero {
namespace {

// What a rank tells the others before anything else is sent.
struct Statement {
  uint64_t options, parameters;
  uint64_t problem;  // 0: none; else its pealResult_t
};
static_assert(sizeof(Statement) == 3 * sizeof(uint64_t));

constexpr int kOpenUnits = 2;      // stage 3: one held open around the others, one in use
constexpr int kBucketSlots = 2;    // stage 2: one being written, one being reduced
constexpr int kGradientUnits = 3;  // stage 3: as for gathered units, the last being reduced
constexpr uint64_t kStagingElements = uint64_t{1} << 20;

template <class Body>
Result<void> withinMemory(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error{pealSystemError, "out of memory for the engine's tables"};
  }
}

std::string listOf(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

Result<void> Engine::seal() {
  PEAL_TRY(checkUsable());
  if (sealed_) {
    return Error{pealInvalidUsage, "the engine is sealed already"};
  }
  isSealing_ = true;
  // A rank that cannot go on still takes part in the agreement: the others learn of it at once. What its
  // caller can mend leaves all of them as they were.
  PEAL_TRY(agree(withinMemory([&] { return prepare(); })));
  if (Result<void> agreed = agree(withinMemory([&] { return allocate(); })); !agreed) {
    return reject(agreed.error());
  }
  PEAL_TRY(collectives_->checked("sealing", withinMemory([&] { return broadcastInitial(); })));
  sealed_ = true;
  return {};
}

Error Engine::reject(Error error) {
  if (!rejected_) {
    rejected_ = error;
  }
  return error;
}

Result<void> Engine::checkComplete() const {
  if (registered_.empty()) {
    return Error{pealInvalidUsage, "the engine has no parameters: call pealZeroAddParameter"};
  }
  const bool isNeeded = options_.initialValues != 0 && collectives_->rank() == 0;
  for (size_t id = 0; id < registered_.size() && isNeeded; ++id) {
    if (!initial_[id].areGiven() && registered_[id].role != Role::Alias) {
      return Error{pealInvalidUsage,
                   fmt::format("parameter {} (\"{}\") has no first values: call pealZeroSetInitial for it on "
                               "rank 0, then pealZeroSeal again on all ranks",
                               id, registered_[id].name)};
    }
  }
  return {};
}

Result<void> Engine::prepare() {
  makeModel();
  return checkComplete();
}

void Engine::makeModel() {
  std::vector<Parameter> parameters = registered_;
  model_.options = options_;
  model_.layout = makeLayout(std::move(parameters), kept_, options_.stage, collectives_->shards(),
                             collectives_->shard(), options_.bucketBytes / model_.gradientBytes());
  const Layout& layout = model_.layout;
  model_.replicas = collectives_->replicas();
  model_.replica = collectives_->replica();
  model_.groups = groups_;
  closed_.assign(layout.units.size(), false);
  const auto kept = static_cast<int>(std::count(kept_.begin(), kept_.end(), true));
  const auto slots = [](int wanted, int otherwise, size_t things) {
    return static_cast<int>(std::min(static_cast<size_t>(wanted > 0 ? wanted : otherwise), things));
  };
  model_.options.unitSlots =
      slots(options_.unitSlots, kOpenUnits + options_.prefetchDepth + kept, layout.units.size());
  if (options_.gathersInFlight == 0) {
    model_.options.gathersInFlight = options_.prefetchDepth + 1;
  }
  model_.options.bucketSlots =
      slots(options_.bucketSlots, options_.stage == 3 ? kGradientUnits : kBucketSlots, layout.buckets.size());

  planArenas();
}

// Parameters of each type are planned by themselves. What they have adds up, but for the one buffer of a sum
// over replicas.
void Engine::planArenas() {
  constexpr int kMomentBytes = 8;
  const Layout& layout = model_.layout;
  pealZeroPlanInput_t input = PEAL_ZERO_PLAN_INITIALIZER;
  input.gradientBytes = static_cast<int>(model_.gradientBytes());
  input.ranks = collectives_->ranks();
  input.rank = collectives_->rank();
  input.microBatches = options_.microBatches;
  input.reduceEachMicroBatch = options_.reduceEachMicroBatch;
  input.units = layout.units.size();
  input.unitSlots = model_.options.unitSlots;
  model_.plan = {};
  for (const Precision precision : kPrecisions) {
    const Extent& of = layout.of[precision];
    if (of.elements + of.frozenElements == 0) {
      continue;
    }
    input.parameters = of.elements;
    input.frozenParameters = of.frozenElements;
    input.weightBytes = static_cast<int>(bytesOf(precision));
    input.optimizerBytes = static_cast<int>(model_.masterBytes(precision)) + kMomentBytes;
    input.buckets = of.buckets;
    input.bucketElements = of.largestBucket;
    input.bucketSlots =
        static_cast<int>(std::min(static_cast<size_t>(model_.options.bucketSlots), of.buckets));
    input.unitElements = of.largestUnit;
    input.unitTrained = of.largestBucket;
    input.unitGradientSlots = input.bucketSlots;
    const pealZeroPlanStage_t row =
        planMemory(input, options_.stage, collectives_->shards(), collectives_->shard(),
                   model_.replicas > 1 ? Replicas::Some : Replicas::None);
    model_.plans[precision] = row;
    model_.plan.weights += row.weights;
    model_.plan.gradients += row.gradients;
    model_.plan.accumulation += row.accumulation;
    model_.plan.gradientBuffers += row.gradientBuffers;
    model_.plan.unitBuffers += row.unitBuffers;
    model_.plan.replicaBuffers = std::max(model_.plan.replicaBuffers, row.replicaBuffers);
  }
}

Result<void> Engine::allocate() {
  PEAL_TRY(weights_.allocate(model_, *collectives_));
  PEAL_TRY(gradients_.allocate(model_, *collectives_, fused_));
  PEAL_TRY(optimizer_.allocate(model_, collectives_->device()));
  fused_.prepare(model_, *collectives_, gradients_, weights_, optimizer_);
  uint64_t largest = 0;
  for (const std::vector<Bucket>* buckets : {&model_.layout.buckets, &model_.layout.frozen}) {
    for (const Bucket& bucket : *buckets) {
      largest = std::max(largest, bucket.elements);
    }
  }
  staging_.resize(std::min(kStagingElements, largest));
  weights_.describeMemory(memory_);
  gradients_.describeMemory(memory_);
  optimizer_.describeMemory(memory_);
  return {};
}

uint64_t Engine::digestOptions() const {
  Digest digest;
  for (const int value :
       {options_.stage, options_.microBatches, options_.reduceEachMicroBatch, options_.bucketSlots,
        options_.unitSlots, options_.prefetchDepth, options_.gathersInFlight, options_.rebuildBuckets,
        static_cast<int>(options_.missingGradients), static_cast<int>(options_.master),
        options_.stochasticRounding, options_.shardGroup, static_cast<int>(options_.reduceType),
        options_.skipNonFinite, options_.convertWeights, options_.convertOptimizer, options_.initialValues}) {
    digest.add(static_cast<uint64_t>(value));
  }
  digest.add(uint64_t{options_.bucketBytes});
  digest.add(options_.seed);
  for (const double value :
       {options_.clipNorm, options_.beta1, options_.beta2, options_.epsilon, options_.weightDecay}) {
    digest.add(value);
  }
  return digest.value();
}

uint64_t Engine::digestParameters() const {
  Digest digest;
  for (const Parameter& parameter : registered_) {
    digest.add(parameter.name);
    digest.add(uint64_t{parameter.extents.size()});
    for (const uint64_t extent : parameter.extents) {
      digest.add(extent);
    }
    for (const int value : {parameter.unit, parameter.group, static_cast<int>(parameter.precision),
                            static_cast<int>(parameter.decay), static_cast<int>(parameter.role),
                            static_cast<int>(parameter.tiedTo)}) {
      digest.add(static_cast<uint64_t>(value));
    }
  }
  for (const Group& group : groups_) {
    for (const double value :
         {group.learningRateFactor, group.beta1, group.beta2, group.epsilon, group.weightDecay}) {
      digest.add(value);
    }
  }
  for (const bool kept : kept_) {
    digest.add(uint64_t{kept ? 1u : 0u});
  }
  return digest.value();
}

Result<void> Engine::agree(const Result<void>& prepared) {
  const auto ranks = static_cast<size_t>(collectives_->ranks());
  const auto self = static_cast<size_t>(collectives_->rank());
  std::vector<Statement> statements(ranks);
  statements[self] = {digestOptions(), digestParameters(),
                      prepared ? uint64_t{0} : static_cast<uint64_t>(prepared.error().code)};
  const std::vector<size_t> counts(ranks, sizeof(Statement) / sizeof(uint64_t));
  const Collectives::Lending lending(*collectives_);
  PEAL_TRY(collectives_->allGather(Among::All, pealZeroStart, &statements[self], statements.data(), counts,
                                   pealUint64, Data::Host));
  PEAL_TRY(collectives_->finish());
  if (!prepared) {
    return prepared.error();
  }

  std::vector<int> failed, otherOptions, otherParameters;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (statements[rank].problem != 0) {
      failed.push_back(static_cast<int>(rank));
    }
    if (statements[rank].options != statements[self].options) {
      otherOptions.push_back(static_cast<int>(rank));
    }
    if (statements[rank].parameters != statements[self].parameters) {
      otherParameters.push_back(static_cast<int>(rank));
    }
  }
  if (!failed.empty()) {
    return Error{
        pealRemoteError,
        fmt::format("{} cannot seal the engine; the reason stands in the error there", listOf(failed))};
  }
  if (!otherOptions.empty()) {
    return reject({pealInvalidUsage,
                   fmt::format("{} passed other options to pealZeroCreate than this rank ({}: stage {}, {} "
                               "micro-batches, buckets of {} bytes); all ranks pass the same",
                               listOf(otherOptions), self, options_.stage, options_.microBatches,
                               options_.bucketBytes)});
  }
  if (!otherParameters.empty()) {
    uint64_t elements = 0;
    for (const Parameter& parameter : registered_) {
      elements += parameter.role == Role::Alias ? 0 : parameter.elements;
    }
    return reject(
        {pealInvalidUsage,
         fmt::format("{} registered other parameters than this rank ({}: {} parameters, {} elements); "
                     "names, shapes, units, groups, types, decay, frozen and tied ones, kept units and the "
                     "order must be the same",
                     listOf(otherParameters), self, registered_.size(), elements)});
  }
  return {};
}

Result<void> Engine::broadcastInitial() {
  for (const Bucket& bucket : model_.layout.buckets) {
    PEAL_TRY(broadcastInitial(bucket, Role::Trained));
  }
  for (const Bucket& bucket : model_.layout.frozen) {
    PEAL_TRY(broadcastInitial(bucket, Role::Frozen));
  }
  initial_.clear();
  staging_ = {};
  return {};
}

void InitialValues::copy(uint64_t first, uint64_t count, float* to) const {
  if (fill != nullptr) {
    fill(user, first, count, to);
  } else {
    std::copy_n(values + first, count, to);
  }
}

namespace {

// While it lives, the caller's function may be running. Ends also where that throws.
class Filling {
 public:
  explicit Filling(bool& isFilling) : isFilling_(isFilling) { isFilling_ = true; }
  ~Filling() { isFilling_ = false; }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;

 private:
  bool& isFilling_;
};

}  // namespace

// Pieces of the bucket through a staging buffer of bounded size, since no rank has room for all in fp32.
Result<void> Engine::broadcastInitial(const Bucket& bucket, Role role) {
  const Layout& layout = model_.layout;
  for (uint64_t begin = 0; begin < bucket.elements; begin += staging_.size()) {
    const std::span<float> piece(staging_.data(), std::min(staging_.size(), bucket.elements - begin));
    const bool areGiven = options_.initialValues != 0;
    if (areGiven && collectives_->rank() == 0) {
      for (const size_t id : bucket.parameters) {
        const uint64_t parameterBegin = layout.parameters[id].begin - bucket.begin;
        const uint64_t from = std::max(begin, parameterBegin);
        const uint64_t to = std::min(begin + piece.size(), parameterBegin + layout.parameters[id].elements);
        if (from < to) {
          const Filling now(isFilling_);
          initial_[id].copy(from - parameterBegin, to - from, piece.data() + (from - begin));
        }
      }
    }
    if (areGiven) {
      PEAL_TRY(collectives_->broadcastFromZero(pealZeroStart, piece.data(), piece.size(), pealFloat32));
      PEAL_TRY(collectives_->finish());
    }
    PEAL_TRY(collectives_->checked("storing first values", weights_.setInitial(bucket, role, begin, piece)));
    if (role == Role::Trained) {
      PEAL_TRY(collectives_->checked("storing first values", optimizer_.setInitial(bucket, begin, piece)));
    }
  }
  return {};
}

}  // namespace peal::zero

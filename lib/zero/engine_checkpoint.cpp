// What checkpoints see of the engine (checkpoint/state.h), and pealZeroSave and pealZeroLoad.
//
// A parameter lies in one bucket (frozen ones in those of Layout::frozen), so a stretch of it that this rank
// owns is contiguous in every arena. At stage 0 all ranks hold everything, and each saves the block that it
// would own at the other stages.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/zero/checkpoint/load.h"
#include "lib/zero/engine.h"

namespace peal::zero {

using checkpoint::Conversion;
using checkpoint::Kind;
using checkpoint::Stream;
using checkpoint::Stretch;
using checkpoint::WeightType;

namespace {

constexpr uint64_t kFetchedElements = 16384;

}  // namespace

class Engine::State : public checkpoint::State {
 public:
  explicit State(Engine& engine) : engine_(engine) {}

  std::vector<checkpoint::ParameterShape> parameters() const override {
    std::vector<checkpoint::ParameterShape> shapes;
    for (const Parameter& parameter : layout().parameters) {
      const bool isTied = parameter.role == Role::Alias;
      const Kind kind = isTied ? Kind::Tied : parameter.role == Role::Frozen ? Kind::Frozen : Kind::Trained;
      shapes.push_back({parameter.name, parameter.elements, parameter.extents, kind,
                        isTied ? parameter.tiedTo : static_cast<uint64_t>(parameter.group),
                        parameter.precision == Precision::Fp32 ? WeightType::Fp32 : WeightType::Bf16});
    }
    return shapes;
  }
  std::vector<checkpoint::AdamwNumbers> groups() const override {
    std::vector<checkpoint::AdamwNumbers> numbers;
    for (const Group& group : engine_.model_.groups) {
      numbers.push_back({group.beta1, group.beta2, group.epsilon, group.weightDecay});
    }
    return numbers;
  }
  uint64_t step() const override { return engine_.updates_; }

  std::vector<Stretch> saved() const override {
    std::vector<Stretch> stretches;
    if (engine_.model_.replica > 0) {
      return stretches;  // the first shard group's ranks save what all groups hold
    }
    for (const std::vector<Bucket>* buckets : {&layout().buckets, &layout().frozen}) {
      for (const Bucket& bucket : *buckets) {
        addStretches(bucket, bucket.ownBegin, bucket.ownElements, stretches);
      }
    }
    return stretches;
  }
  // Frozen weights are held in full below stage 3.
  std::vector<Stretch> held() const override {
    std::vector<Stretch> stretches;
    for (const Bucket& bucket : layout().buckets) {
      const Owned part = engine_.model_.owned(bucket);
      addStretches(bucket, part.begin, part.elements, stretches);
    }
    const bool isSharded = engine_.model_.stage() == 3;
    for (const Bucket& bucket : layout().frozen) {
      addStretches(bucket, isSharded ? bucket.ownBegin : 0, isSharded ? bucket.ownElements : bucket.elements,
                   stretches);
    }
    return stretches;
  }

  Conversion conversion() const override {
    return engine_.options_.convertWeights != 0 ? Conversion::Allowed : Conversion::Refused;
  }
  Conversion optimizerConversion() const override {
    return engine_.options_.convertOptimizer != 0 ? Conversion::Allowed : Conversion::Refused;
  }

  // By pieces: what has to be computed or brought from a GPU is there a second time meanwhile.
  Result<void> fetch(Stream stream, const Stretch& stretch, void* to) const override {
    auto* into = static_cast<std::byte*>(to);
    for (uint64_t done = 0; done < stretch.elements; done += kFetchedElements) {
      const uint64_t count = std::min(kFetchedElements, stretch.elements - done);
      PEAL_TRY(fetchPiece(stream, {stretch.parameter, stretch.begin + done, count}, into));
      into += count * elementBytes(stream);
    }
    return {};
  }

  Result<void> fetchPiece(Stream stream, const Stretch& stretch, void* to) const {
    const Place at = place(stretch);
    const size_t size = stretch.elements * elementBytes(stream);
    if (stream == Stream::Weight || stream == Stream::Frozen) {
      const Elements from = weights(at);
      if (from.isWide()) {
        std::vector<float> room;
        const Result<const float*> wide = device().view<float>(from.fp32(), stretch.elements, room);
        if (!wide) {
          return wide.error();
        }
        loops().round(*wide, static_cast<uint16_t*>(to), stretch.elements);
        return {};
      }
      return device().download(to, from.data, size);
    }
    std::vector<float> room;
    const Result<const float*> values =
        engine_.optimizer_.state(tensorOf(stream), at.bucket, static_cast<uint64_t>(at.offset),
                                 stretch.elements, engine_.weights_.ownedPart(at.bucket), room);
    if (!values) {
      return values.error();
    }
    std::memcpy(to, *values, size);
    return {};
  }

  // A master brings its weight along; stored weights come after, and differ where they were rounded
  // otherwise.
  Result<void> store(Stream stream, const Stretch& stretch, const void* from) override {
    const Place at = place(stretch);
    const size_t size = stretch.elements * elementBytes(stream);
    const std::span masters(static_cast<const float*>(from), stretch.elements);
    switch (stream) {
      case Stream::Master:
        PEAL_TRY(engine_.weights_.setInitial(at.bucket, Role::Trained, at.begin, masters));
        return engine_.optimizer_.setInitial(at.bucket, at.begin, masters);
      case Stream::Moment1:
      case Stream::Moment2:
        return device().upload(
            engine_.optimizer_.moment(tensorOf(stream), at.bucket, static_cast<uint64_t>(at.offset)), from,
            size);
      case Stream::Weight:
        // A remainder belongs to the weight that its master gave.
        // So does an fp32 weight, which is one.
        return at.bucket.precision == Precision::Bf16 && engine_.options_.master != pealZeroMasterRemainder
                   ? device().upload(weights(at).data, from, size)
                   : Result<void>();
      case Stream::Frozen:
        if (const Elements to = weights(at); to.isWide()) {
          return device().write(to.fp32(), stretch.elements, [&](float* wide) {
            loops().widen(static_cast<const uint16_t*>(from), wide, stretch.elements);
          });
        }
        return device().upload(weights(at).data, from, size);
    }
    return {};
  }

  Result<void> stored() override { return engine_.collectives_->finish(); }

  Result<void> restored(uint64_t step) override {
    engine_.weights_.forgetGathered();
    for (size_t index = layout().buckets.size(); index-- > 0;) {
      PEAL_TRY(engine_.weights_.gatherUpdated(index, pealZeroInspect));
    }
    engine_.updates_ = step;
    return engine_.collectives_->finish();
  }

 private:
  const Layout& layout() const { return engine_.model_.layout; }
  Device& device() const { return *engine_.collectives_->device(); }

  // The parameters' parts of `elements` elements from `begin` of the bucket.
  void addStretches(const Bucket& bucket, uint64_t begin, uint64_t elements,
                    std::vector<Stretch>& stretches) const {
    for (const size_t id : bucket.parameters) {
      const Parameter& parameter = layout().parameters[id];
      const uint64_t first = parameter.begin - bucket.begin;
      const uint64_t from = std::max(begin, first);
      const uint64_t to = std::min(begin + elements, first + parameter.elements);
      if (from < to) {
        stretches.push_back({id, from - first, to - from});
      }
    }
  }

  struct Place {
    const Bucket& bucket;
    uint64_t begin;         // from the start of the bucket
    std::ptrdiff_t offset;  // from this rank's part of it: below zero for frozen weights held before it
  };
  Place place(const Stretch& stretch) const {
    const Parameter& parameter = layout().parameters[stretch.parameter];
    const Bucket& bucket = layout().bucketOf(parameter);
    const uint64_t begin = parameter.begin - bucket.begin + stretch.begin;
    return {
        bucket, begin,
        static_cast<std::ptrdiff_t>(begin) - static_cast<std::ptrdiff_t>(engine_.model_.owned(bucket).begin)};
  }
  Elements weights(const Place& at) const {
    const Elements own = engine_.weights_.ownedPart(at.bucket);
    const auto size = static_cast<std::ptrdiff_t>(bytesOf(own.precision));
    return {static_cast<std::byte*>(own.data) + at.offset * size, own.precision};
  }
  static pealZeroTensor_t tensorOf(Stream stream) { return static_cast<pealZeroTensor_t>(stream); }

  Engine& engine_;
};
static_assert(static_cast<int>(Stream::Master) == pealZeroMaster);
static_assert(static_cast<int>(Stream::Moment1) == pealZeroMoment1);
static_assert(static_cast<int>(Stream::Moment2) == pealZeroMoment2);

checkpoint::State& Engine::state() {
  if (!state_) {
    state_ = std::make_unique<State>(*this);
  }
  return *state_;
}

// An error of this rank, to be voted on.
Result<void> Engine::betweenSteps(const char* what) const {
  if (weights_.anyOpen() || gradients_.anyHandedOver()) {
    return Error{
        pealInvalidUsage,
        fmt::format("a checkpoint is {} between steps: all units left, and no gradient handed over", what)};
  }
  return {};
}

Result<void> Engine::beginSave(const char* path, std::span<const std::byte> user, checkpoint::SaveMode mode) {
  PEAL_TRY(checkSealed());
  Result<void> usable = betweenSteps("saved");
  if (save_) {
    usable = Error{pealInvalidUsage, "a save is in flight; call pealZeroSaveWait before the next begins"};
  }
  Result<std::unique_ptr<checkpoint::Save>> begun =
      checkpoint::Save::begin(*collectives_, state(), path, user, mode, usable);
  if (!begun) {
    return begun.error();
  }
  save_ = std::move(*begun);
  return {};
}

Result<void> Engine::finishSave() {
  PEAL_TRY(checkSealed());
  if (!save_) {
    return Error{pealInvalidUsage, "no save is in flight; call pealZeroSaveBegin first"};
  }
  const std::unique_ptr<checkpoint::Save> save = std::move(save_);
  return save->finish();
}

Result<void> Engine::load(const char* path) {
  PEAL_TRY(checkSealed());
  checkpoint::Spoiled spoiled = checkpoint::Spoiled::No;
  Result<void> loaded = checkpoint::load(*collectives_, state(), path, betweenSteps("loaded"), spoiled);
  if (!loaded && spoiled == checkpoint::Spoiled::Yes) {
    rejected_ = Error{loaded.error().code,
                      fmt::format("the engine holds a part of {} and can only be destroyed, since loading it "
                                  "failed half-way: {}",
                                  path, loaded.error().message)};
    return *rejected_;
  }
  return loaded;
}

}  // namespace peal::zero

// The weights: in full at stages 0 to 2, as this rank's shard and a few buffers of gathered units at
// stage 3. Which units are open, gathering before use, freeing after, prefetch.
//
// At stages 1 and 2 the new weights are gathered bucket by bucket after the step, first needed first, and a
// unit is entered when its buckets are there. At stage 3 a unit is gathered into a free buffer when it is
// entered, or earlier: while a unit computes, the units that followed it last time in the same pass are
// gathered, as many as prefetchDepth says, as there are buffers, and as gathersInFlight allows. A gathering
// is in flight until the caller has waited for it or for a later one: whether it really has ended differs
// from rank to rank. All decisions follow from the sequence of calls, so they are the same on every rank.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/zero/arena.h"
#include "lib/zero/collectives.h"
#include "lib/zero/model.h"
#include "lib/zero/plane.h"

namespace peal::zero {

class Weights {
 public:
  Result<void> allocate(const Model& model, Collectives& collectives);
  void describeMemory(ArenaList& list) const;

  // The first values of `count` elements from `begin` of the bucket, which has parameters of that role,
  // rounded. What is not held is passed over.
  Result<void> setInitial(const Bucket& bucket, Role role, uint64_t begin, std::span<const float> values);

  Result<void> enter(size_t unit, pealZeroPass_t pass);
  Result<void> leave(size_t unit, pealZeroPass_t pass);
  bool isOpen(size_t unit) const { return units_[unit].open; }
  bool isOpenFor(size_t unit, pealZeroPass_t pass) const { return isOpen(unit) && units_[unit].pass == pass; }
  bool anyOpen() const { return openUnits_ > 0; }
  // What this rank holds between steps: all weights, or its part of them.
  std::span<const std::byte> held() const { return weights_.bytes(); }
  // While its unit is open.
  Elements weights(size_t id) const;

  // Forgets gathered units that are not open, kept ones too.
  void forgetGathered();

  // The layout's buckets are others now; gatherUpdated() comes next, for all of them.
  void followLayout();
  // All weights of a bucket, at stages 0 to 2.
  Elements all(const Bucket& bucket) const { return in(weights_, bucket.weightsAt, bucket); }
  // At stages 0 to 2, 16 bits of each weight of a type; a bucket begins at planeBegin().
  std::vector<Plane> planes(Precision precision) const;
  static uint64_t planeBegin(const Bucket& bucket) { return bucket.weightsAt / bytesOf(bucket.precision); }

  // The step: where a bucket's owned part goes, and its way to the other ranks.
  Elements owned(size_t bucket) const;
  Elements ownedPart(const Bucket& bucket) const;  // also of a bucket of frozen ones
  // counter: of the step, or pealZeroInspect after a load.
  Result<void> gatherUpdated(size_t bucket, int counter = pealZeroAllGather);

  // The bucket's new weights come with what was queued last.
  Result<void> markUpdated(size_t bucket) { return collectives_->record(updated_[bucket]); }

  // A parameter's values on every rank, as they are; waits. counts: how many of them each rank owns.
  Result<void> read(const Parameter& parameter, std::span<const size_t> counts, void* values);

 private:
  static Elements in(const Arena& arena, uint64_t bytes, const Bucket& bucket) {
    return {arena.as<std::byte>() + bytes, bucket.precision};
  }
  Elements gathered(const Bucket& bucket, int slot) const;
  struct UnitState {
    bool open = false;
    pealZeroPass_t pass = pealZeroForward;
    int slot = -1;  // stage 3: where it is gathered
    Mark gathered;
    uint64_t issue = 0;       // number of its last gathering, from 1
    bool prefetched = false;  // and not entered since
  };

  Result<void> enterSharded(size_t unit, pealZeroPass_t pass);
  Result<void> gather(size_t unit, int slot);
  Result<void> arrive(UnitState& unit);
  Result<void> awaitOldest();
  bool mayIssue() const {
    return issued_ - arrived_ < static_cast<uint64_t>(model_->options.gathersInFlight);
  }
  void learnOrder(size_t unit, pealZeroPass_t pass);
  Result<void> prefetchAhead();
  int freeSlot() const;
  int slotForEntry();
  void free(UnitState& unit);

  static constexpr int kNone = -1;
  const Model* model_ = nullptr;
  Collectives* collectives_ = nullptr;
  Arena weights_;  // all of them, or this rank's shard
  Arena buffers_;  // stage 3: the slots
  std::vector<UnitState> units_;
  std::vector<bool> slotTaken_;
  std::vector<Mark> updated_;             // per bucket, stages 1 and 2
  std::array<std::vector<int>, 2> next_;  // per pass: the unit entered after this one
  uint64_t issued_ = 0, arrived_ = 0;     // gatherings, by their numbers
  int lastEntered_ = kNone;               // in the running pass
  pealZeroPass_t lastPass_ = pealZeroForward;
  std::vector<bool> entered_;  // in the running pass
  size_t openUnits_ = 0;
};

}  // namespace peal::zero

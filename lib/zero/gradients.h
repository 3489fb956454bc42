// Gradients of one micro-batch after another: where the caller writes them, when a bucket is complete, its
// reduction, and the sum over micro-batches.
//
// Stages 0 and 1 have room for all gradients; a bucket is reduced where it lies. Stages 2 and 3 have a few
// buffers of a bucket each and this rank's shard; a bucket takes a buffer when its first gradient is asked
// for, and gives it back when it has been reduced into the shard. Buckets are reduced in their order (at
// stage 3: in the order in which units are left, which is the same on every rank).
//
// Gradients have the same type whatever the weights have, but buckets of bf16 and of fp32 weights have
// buffers of their own: one of the few fp32 parameters may be filled for as long as many of the others.
//
// Several micro-batches are added up in fp32 and rounded once (if gradients are bf16) at the end, either
// before the reduction on the caller's thread (Model::addsUpLocally) or after it on the stream
// (addsUpReduced).
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "lib/zero/arena.h"
#include "lib/zero/collectives.h"
#include "lib/zero/model.h"
#include "lib/zero/replica_sum.h"

namespace peal::zero {

class FusedStep;

class Gradients {
 public:
  // fused: buckets that are not only reduced. Prepared later, but before the first gradient.
  Result<void> allocate(const Model& model, Collectives& collectives, FusedStep& fused);
  void describeMemory(ArenaList& list) const;

  // Of the running micro-batch.
  Result<Elements> destination(size_t id);
  Result<void> ready(size_t id);
  // All gradients of the unit that are not ready become zeros.
  Result<void> fillMissing(size_t unit);
  // Stage 3: reduces the unit, whose gradients are all ready. One whose parameters are all frozen has none.
  Result<void> reduceUnit(size_t unit);
  // Reduces what is complete, in order. After a unit was left: some buckets wait for that.
  Result<void> launchInOrder();
  // All buckets are reduced or about to be; the next micro-batch (or step) may begin.
  void endMicroBatch();

  // After the last micro-batch: waits for the bucket's reduction. The two pointers are to this rank's block
  // of the bucket, whose squares it adds up, and to the part that it updates (the same but at stage 0).
  Result<void> waitReduced(size_t bucket) { return collectives_->wait(buckets_[bucket].done); }
  Elements block(size_t bucket) const;
  Elements owned(size_t bucket) const;

  // The trained parameters in the order in which they became ready in the first micro-batch; asked for once.
  std::vector<uint64_t> takeReadyOrder() { return std::exchange(readyOrder_, {}); }
  // Memory that is not in use between steps, of no less than two bytes for each owned element.
  void* idle() const { return gradients_.as<void>(); }
  // The layout's buckets are others now. Between steps, with nothing in the stream.
  void followLayout();

  bool anyHandedOver() const { return microBatch_ > 0 || handedOver_ > 0; }
  bool anyHandedOverNow() const { return handedOver_ > 0; }  // in this micro-batch
  int microBatch() const { return microBatch_; }
  bool isLastMicroBatch() const {
    return !isWhole_ &&
           (last_ == Last::ByNumber ? microBatch_ + 1 == model_->options.microBatches : last_ == Last::Next);
  }
  // The step's last micro-batch has ended.
  bool isWhole() const { return isWhole_; }
  bool isByNumber() const { return last_ == Last::ByNumber; }
  // From the next micro-batch on, in place of their number: none is its step's last, or the next one is.
  void setNoSync(bool on) { last_ = on ? Last::Later : Last::Next; }
  // The micro-batches before this one, of this rank's block of the bucket, where they are added up after
  // their reduction; else nullptr.
  float* sumsOf(size_t bucket) const {
    return sums_.empty() || microBatch_ == 0 ? nullptr : sums_[bucket].sums;
  }
  void beginStep() {
    microBatch_ = 0;
    isWhole_ = false;
  }
  // Counted since it was last asked.
  uint64_t takeMissing() { return std::exchange(missing_, 0); }

 private:
  enum class State : uint8_t { Idle, Asked, Ready };
  enum class Last : uint8_t { ByNumber, Later, Next };
  struct BucketState {
    size_t ready = 0;  // parameters
    int slot = -1;     // buffer that it holds, stages 2 and 3
    Mark done;         // reduced, and added up
  };
  struct Slot {
    bool taken = false;
    uint64_t launchedAt = 0;  // the buffer given back longest ago is taken first
    Mark reduced;
  };
  // A bucket's part of the sum over micro-batches. Never changes.
  struct Sum {
    Elements values;
    float* sums;
    size_t count;
  };

  bool isComplete(size_t bucket) const {
    return buckets_[bucket].ready == model_->layout.buckets[bucket].parameters.size();
  }
  // Stages 2 and 3: a bucket takes a buffer of its type's.
  bool hasSlots() const { return model_->stage() >= 2; }
  std::vector<Slot>& slotsFor(size_t bucket) { return slots_[model_->layout.buckets[bucket].precision]; }
  const std::vector<Slot>& slotsFor(size_t bucket) const {
    return slots_[model_->layout.buckets[bucket].precision];
  }
  static std::vector<Slot>::iterator freeSlot(std::vector<Slot>& slots);
  Result<void> takeSlot(size_t bucket);
  Error noSlotFor(size_t bucket) const;
  Result<void> complete(size_t id);
  Result<void> addUp(const Parameter& parameter, Elements values);
  bool isOnlyMicroBatch() const { return microBatch_ == 0 && isLastMicroBatch(); }
  Pass passOf(Elements values, float* sums, size_t count) const;
  Result<void> launch(size_t bucket);
  Result<void> reduce(size_t bucket);
  Elements reducedPart(const Bucket& bucket) const;
  Elements address(const Parameter& parameter) const;
  Elements addressOf(const Bucket& bucket) const {
    return address(model_->layout.parameters[bucket.parameters.front()]);
  }
  Elements in(const Arena& arena, uint64_t element) const {
    return Elements{arena.as<void>(), model_->gradientPrecision()}.at(element);
  }

  const Model* model_ = nullptr;
  Collectives* collectives_ = nullptr;
  FusedStep* fused_ = nullptr;
  Arena gradients_;     // all of them, or this rank's shard
  Arena buffers_;       // stages 2 and 3: the slots, those of bf16 weights first
  Arena accumulation_;  // more than one micro-batch
  std::vector<State> states_;
  std::vector<BucketState> buckets_;
  PerPrecision<std::vector<Slot>> slots_;
  std::vector<Sum> sums_;
  ReplicaSum replicaSum_;  // with several shard groups
  size_t nextLaunch_ = 0;
  uint64_t launches_ = 0;
  int microBatch_ = 0;
  Last last_ = Last::ByNumber;
  bool isWhole_ = false;
  size_t handedOver_ = 0;  // in this micro-batch
  uint64_t missing_ = 0;
  std::vector<uint64_t> readyOrder_;
  bool notesOrder_ = true;  // in the first micro-batch
};

}  // namespace peal::zero

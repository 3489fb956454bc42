// The sum of gradients over several shard groups, with the bits that one group of all ranks gives.
//
// A sum that every group rounds for itself would have other bits than the flat one, and so would a sum of the
// groups' fp32 sums: floating-point addition is not associative. So the ranks of a group exchange their parts
// unsummed (as many bytes as a reduce-scatter), and the sum itself goes through the groups in rank order: the
// owner in group 0 adds up its group's parts in fp32, the owner in group 1 goes on from there with its own,
// and the last one rounds to bf16 (if gradients are that) and sends the result to all. 4 + 2 bytes per owned
// element where a bf16 all-reduce has 2 + 2, and the same number of elements.
//
// Several micro-batches that are exchanged once a step (Model::addsUpInGroup) are first added up in fp32 in
// each group; then the groups' sums are added in their order.
//
// Owned and called by Gradients. Everything runs on the engine's stream, so that buckets follow one another.
#pragma once
#include <cstdint>

#include "lib/zero/arena.h"
#include "lib/zero/collectives.h"
#include "lib/zero/model.h"

namespace peal::zero {

class ReplicaSum {
 public:
  Result<void> allocate(const Model& model, Collectives& collectives);
  void describeMemory(ArenaList& list) const { describe(buffers_, list); }

  // from: the bucket's gradients of this rank, all elements, not to be written before the stream is done with
  // them. to: this rank's block of the sum over all ranks; may be its place in `from`.
  Result<void> reduce(size_t bucket, Elements from, Elements to);

  // The same for several micro-batches: sums (+)= the group's sum; then, after the last, over all groups.
  Result<void> addUp(size_t bucket, Elements from, float* sums, bool isFirst);
  Result<void> finish(size_t bucket, float* sums, Elements to);

 private:
  const Bucket& bucketOf(size_t index) const { return model_->layout.buckets[index]; }
  // Queues sums (+)= the group's parts of this rank's block, in rank order.
  Result<void> addParts(size_t bucket, Elements from, float* sums, bool startsSum);
  Result<void> exchange(size_t bucket, Elements from);
  Result<void> receiveTotal(size_t bucket);
  // Rounds the last group's total and gives it to all.
  Result<void> passOn(size_t bucket, float* total, Elements to);
  float* total() const { return buffers_.as<float>(); }  // of the groups so far
  Purpose purpose(size_t bucket) const { return {pealZeroReplicas, model_->nameOf(bucket)}; }

  const Model* model_ = nullptr;
  Collectives* collectives_ = nullptr;
  Arena buffers_;  // the total, then the other ranks' parts; one bucket after the other uses them
  Elements parts_;
};

}  // namespace peal::zero

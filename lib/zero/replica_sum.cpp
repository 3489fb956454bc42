#include "lib/zero/replica_sum.h"

namespace peal::zero {

Result<void> ReplicaSum::allocate(const Model& model, Collectives& collectives) {
  model_ = &model;
  collectives_ = &collectives;
  const auto shards = static_cast<uint64_t>(collectives.shards());
  const uint64_t block = (model.layout.largestBucket + shards - 1) / shards;
  PEAL_TRY(buffers_.allocate(collectives.device(), "replica buffers", pealZeroWorking, ArenaMemory::Shared,
                             block * (sizeof(float) + (shards - 1) * model.gradientBytes()),
                             model.plan.replicaBuffers));
  parts_ = {buffers_.as<float>() + block, model.gradientPrecision()};
  return {};
}

Result<void> ReplicaSum::exchange(size_t index, Elements from) {
  return collectives_->exchangeBlocks({pealZeroReduceScatter, model_->nameOf(index)}, from, parts_,
                                      bucketOf(index).counts);
}

Result<void> ReplicaSum::addParts(size_t index, Elements from, float* sums, bool startsSum) {
  const Bucket& bucket = bucketOf(index);
  Elements next = parts_;
  for (int shard = 0; shard < collectives_->shards(); ++shard) {
    Elements part = from.at(bucket.ownBegin);
    if (shard != collectives_->shard()) {
      part = next;
      next = next.at(bucket.ownElements);
    }
    const Pass::Kind kind = shard == 0 && startsSum ? Pass::Kind::Start : Pass::Kind::Add;
    PEAL_TRY(collectives_->run(Pass{kind, part, sums, bucket.ownElements}));
  }
  return {};
}

Result<void> ReplicaSum::receiveTotal(size_t index) {
  const bool comes = model_->replica > 0 && bucketOf(index).ownElements > 0;
  return comes ? collectives_->receiveFromReplicaBefore(purpose(index), total(), bucketOf(index).ownElements)
               : Result<void>();
}

Result<void> ReplicaSum::reduce(size_t index, Elements from, Elements to) {
  PEAL_TRY(exchange(index, from));
  PEAL_TRY(receiveTotal(index));
  PEAL_TRY(addParts(index, from, total(), model_->replica == 0));
  return passOn(index, total(), to);
}

Result<void> ReplicaSum::addUp(size_t index, Elements from, float* sums, bool isFirst) {
  PEAL_TRY(exchange(index, from));
  return addParts(index, from, sums, isFirst);
}

Result<void> ReplicaSum::finish(size_t index, float* sums, Elements to) {
  PEAL_TRY(receiveTotal(index));
  if (model_->replica > 0) {
    PEAL_TRY(collectives_->run(
        Pass{Pass::Kind::Add, {total(), Precision::Fp32}, sums, bucketOf(index).ownElements}));
  }
  return passOn(index, sums, to);
}

Result<void> ReplicaSum::passOn(size_t index, float* total, Elements to) {
  const uint64_t elements = bucketOf(index).ownElements;
  if (model_->replica + 1 == model_->replicas) {
    PEAL_TRY(collectives_->run(Pass{Pass::Kind::Store, to, total, elements}));
  } else if (elements > 0) {
    PEAL_TRY(collectives_->sendToReplicaAfter(purpose(index), total, elements));
  }
  return collectives_->broadcastFromLastReplica(purpose(index), to, elements);
}

}  // namespace peal::zero

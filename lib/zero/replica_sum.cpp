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
  followLayout();
  return {};
}

void ReplicaSum::followLayout() {
  tasks_.clear();
  for (const Bucket& bucket : model_->layout.buckets) {
    tasks_.push_back({{},
                      parts_,
                      bucket.ownElements,
                      collectives_->shards(),
                      collectives_->shard(),
                      buffers_.as<float>(),
                      nullptr,
                      false,
                      {}});
  }
}

// The group's parts in rank order.
void ReplicaSum::addParts(const Task& task, float* sums) {
  Elements next = task.parts;
  for (int shard = 0; shard < task.shards; ++shard) {
    Elements part = task.own;
    if (shard != task.shard) {
      part = next;
      next = next.at(task.elements);
    }
    if (shard == 0 && task.startsSum) {
      startSums(part, sums, task.elements);
    } else {
      addToSums(part, sums, task.elements);
    }
  }
}

Result<void> ReplicaSum::exchange(size_t index, Elements from) {
  const Bucket& bucket = model_->layout.buckets[index];
  tasks_[index].own = from.at(bucket.ownBegin);
  return collectives_->exchangeBlocks({pealZeroReduceScatter, model_->nameOf(index)}, from, parts_,
                                      bucket.counts);
}

Result<void> ReplicaSum::reduce(size_t index, Elements from, Elements to) {
  Task& task = tasks_[index];
  task.to = to;
  task.startsSum = model_->replica == 0;
  PEAL_TRY(exchange(index, from));
  if (model_->replica > 0 && task.elements > 0) {
    PEAL_TRY(collectives_->receiveFromReplicaBefore(purpose(index), task.total, task.elements));
  }
  PEAL_TRY(collectives_->run(
      [](void* argument) {
        const auto& sum = *static_cast<Task*>(argument);
        addParts(sum, sum.total);
      },
      &task));
  return passOn(index, task.total);
}

Result<void> ReplicaSum::addUp(size_t index, Elements from, float* sums, bool isFirst) {
  Task& task = tasks_[index];
  task.sums = sums;
  task.startsSum = isFirst;
  PEAL_TRY(exchange(index, from));
  return collectives_->run(
      [](void* argument) {
        const auto& sum = *static_cast<Task*>(argument);
        addParts(sum, sum.sums);
      },
      &task);
}

Result<void> ReplicaSum::finish(size_t index, Elements to) {
  Task& task = tasks_[index];
  task.to = to;
  if (model_->replica > 0 && task.elements > 0) {
    PEAL_TRY(collectives_->receiveFromReplicaBefore(purpose(index), task.total, task.elements));
    PEAL_TRY(collectives_->run(
        [](void* argument) {
          const auto& sum = *static_cast<Task*>(argument);
          for (size_t i = 0; i < sum.elements; ++i) {
            sum.sums[i] = sum.total[i] + sum.sums[i];
          }
        },
        &task));
  }
  return passOn(index, task.sums);
}

Result<void> ReplicaSum::passOn(size_t index, const float* total) {
  Task& task = tasks_[index];
  if (model_->replica + 1 < model_->replicas) {
    if (task.elements > 0) {
      PEAL_TRY(collectives_->sendToReplicaAfter(purpose(index), total, task.elements));
    }
  } else {
    PEAL_TRY(collectives_->run(
        [](void* argument) {
          const auto& sum = *static_cast<Task*>(argument);
          storeSums(sum.sums != nullptr ? sum.sums : sum.total, sum.to, sum.elements);
        },
        &task));
  }
  return collectives_->broadcastFromLastReplica(purpose(index), task.to, task.elements);
}

}  // namespace peal::zero

// Bytes on one rank, stage by stage: ZeRO's formulas with the exact shard sizes of uneven division.
#include <algorithm>

#include "lib/zero/planner.h"

namespace peal::zero {
namespace {

uint64_t bytes(uint64_t elements, int perElement) { return elements * static_cast<uint64_t>(perElement); }

uint64_t divideUp(uint64_t value, uint64_t by) { return (value + by - 1) / by; }

bool hasFullWeights(int stage) { return stage <= 2; }
bool hasFullGradients(int stage) { return stage <= 1; }

uint64_t largestBucket(const pealZeroPlanInput_t& input) {
  if (input.bucketElements > 0) {
    return input.bucketElements;
  }
  return std::min(input.parameters, input.bucketBytes / static_cast<uint64_t>(input.gradientBytes));
}

uint64_t largestUnit(const pealZeroPlanInput_t& input, uint64_t elements) {
  if (input.units == 0) {
    return input.unitElements;
  }
  return input.unitElements > 0 ? input.unitElements : divideUp(elements, input.units);
}

// Of the largest unit's gradients. No unit has more trained elements than there are.
uint64_t largestTrained(const pealZeroPlanInput_t& input) {
  const uint64_t given = input.unitTrained > 0 ? input.unitTrained : largestUnit(input, input.parameters);
  return std::min(given, input.parameters);
}

// More buffers than there are things to put into them are never made. things: 0 if not known.
int slots(int wanted, uint64_t things) {
  return things == 0 ? wanted : static_cast<int>(std::min(static_cast<uint64_t>(wanted), things));
}

// fp32 sums over micro-batches: of the whole space where a rank adds up its own gradients before it
// communicates, of the shard where reduced gradients are added up.
uint64_t accumulationBytes(const pealZeroPlanInput_t& input, int stage, uint64_t owned) {
  if (input.microBatches == 1) {
    return 0;
  }
  const bool beforeReduction = hasFullGradients(stage) && input.reduceEachMicroBatch == 0;
  return bytes(beforeReduction || stage == 0 ? input.parameters : owned, 4);
}

}  // namespace

uint64_t bucketCount(const pealZeroPlanInput_t& input) {
  const uint64_t each = std::max<uint64_t>(1, input.bucketBytes / static_cast<uint64_t>(input.gradientBytes));
  return input.buckets > 0 ? input.buckets : std::max<uint64_t>(1, divideUp(input.parameters, each));
}

pealZeroPlanStage_t planMemory(const pealZeroPlanInput_t& input, int stage, int64_t shards, int64_t shard,
                               Replicas replicas) {
  const uint64_t trained = input.parameters;
  const uint64_t owned = stage == 0 ? trained : shardElements(trained, shards, shard);
  const uint64_t ownedFrozen = shardElements(input.frozenParameters, shards, shard);

  pealZeroPlanStage_t row{};
  row.valid = 1;
  row.shardElements = owned;
  row.weights = bytes(hasFullWeights(stage) ? trained + input.frozenParameters : owned + ownedFrozen,
                      input.weightBytes);
  row.gradients = bytes(hasFullGradients(stage) ? trained : owned, input.gradientBytes);
  row.optimizer = bytes(owned, input.optimizerBytes);
  row.modelStates = row.weights + row.gradients + row.optimizer;

  row.accumulation = accumulationBytes(input, stage, owned);
  if (stage == 2) {
    row.gradientBuffers =
        bytes(largestBucket(input), input.gradientBytes * slots(input.bucketSlots, bucketCount(input)));
  }
  if (stage == 3) {
    row.gradientBuffers =
        bytes(largestTrained(input), input.gradientBytes * slots(input.unitGradientSlots, input.units));
    row.unitBuffers = bytes(largestUnit(input, trained + input.frozenParameters),
                            input.weightBytes * slots(input.unitSlots, input.units));
  }
  if (replicas == Replicas::Some) {
    // A block of the largest reduction: the other ranks' parts of it, and their sum in fp32.
    const auto others = static_cast<uint64_t>(shards - 1);
    const uint64_t block = divideUp(stage == 3 ? largestTrained(input) : largestBucket(input), others + 1);
    row.replicaBuffers = bytes(block * others, input.gradientBytes) + bytes(block, 4);
  }
  const double perLayer = 34 * input.sequence * input.sequences * input.hidden;
  row.activations =
      static_cast<uint64_t>(input.activationBytes > 0 ? input.activationBytes : perLayer * input.layers);
  row.total = row.modelStates + row.accumulation + row.gradientBuffers + row.unitBuffers +
              row.replicaBuffers + row.activations;
  return row;
}

}  // namespace peal::zero

// The planner's parts that the engine shares: how a flat space divides over ranks, and the bytes of each
// arena on one rank. The engine allocates what these functions say; nothing else computes a size.
//
// Called by planner.cpp for the tables of pealZeroPlan and by the engine for its arenas. Allocates nothing.
#pragma once
#include <cstdint>

#include "lib/base/result.h"
#include "peal/zero.h"

namespace peal::zero {

// Elements of `total` that shard `index` of `shards` owns: the first total % shards own one more.
constexpr uint64_t shardElements(uint64_t total, int64_t shards, int64_t index) {
  const auto count = static_cast<uint64_t>(shards);
  return total / count + (static_cast<uint64_t>(index) < total % count ? 1 : 0);
}

// What a row of the plan shards, 0 to 3, and whether inside shard groups (HSDP).
constexpr int stageOfRow(int row) {
  return row == pealZeroPlanHsdp ? 3 : row == pealZeroPlanHsdp1 ? 1 : row == pealZeroPlanHsdp2 ? 2 : row;
}
constexpr bool isGrouped(int row) { return row >= pealZeroPlanHsdp; }

// A field is wrong: says which, its value, and what it may be.
Result<void> checkPlanInput(const pealZeroPlanInput_t& input);

// Buckets of the gradients: given, or as many as bucketBytes makes; at least 1.
uint64_t bucketCount(const pealZeroPlanInput_t& input);

// The memory part of one row: weights to total. stage: 0 to 3. `shards`: over how many ranks state is
// divided; Replicas: whether other ranks own the same elements.
enum class Replicas { None, Some };
pealZeroPlanStage_t planMemory(const pealZeroPlanInput_t& input, int stage, int64_t shards, int64_t shard,
                               Replicas replicas);

// Fills in recommended and reason.
void recommendStage(const pealZeroPlanInput_t& input, pealZeroPlan_t& plan);

Result<pealZeroPlan_t> makePlan(const pealZeroPlanInput_t& input);

}  // namespace peal::zero

// Communication and time of a step.
//
// Time hides where there is something to hide behind; what that means for each stage stands in
// docs/ZERO-ENGINE.md, and `phases` below is its text in code: a phase is a stretch of computing with the
// bytes that may be sent meanwhile, in equal pieces.
#include "lib/zero/planner.h"

#include <algorithm>
#include <vector>

namespace peal::zero {
namespace {

// A stretch of computing and what is sent during it.
struct Phase {
  double computeSeconds;
  double flopsPerToken;
  double bytes;           // sent per rank
  double bytesPerSecond;  // on which link
  uint64_t pieces;        // sent one after another, each when its share of the computing is done (or before)
};

// One piece is never hidden: the last (its data comes at the end) or the first (needed at the start). More
// is exposed if sending is slower than computing.
double exposed(const Phase& phase) {
  if (phase.bytes <= 0 || phase.bytesPerSecond <= 0) {
    return 0;
  }
  const auto pieces = static_cast<double>(phase.pieces);
  const double piece = phase.bytes / phase.bytesPerSecond / pieces;
  return std::max(piece, phase.bytes / phase.bytesPerSecond - (pieces - 1) / pieces * phase.computeSeconds);
}

// Tokens with which computing takes at least as long as sending.
double tokensToHide(const Phase& phase, double flopsPerSecond) {
  if (phase.bytes <= 0 || phase.bytesPerSecond <= 0 || phase.flopsPerToken <= 0) {
    return 0;
  }
  return phase.bytes / phase.bytesPerSecond * flopsPerSecond / phase.flopsPerToken;
}

double others(int64_t ranks) { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); }

// What the rows of one plan have in common.
struct Step {
  const pealZeroPlanInput_t& input;
  double trained, all;  // elements
  double microBatches;  // m
  double reductions;    // of each gradient per step, at stages 0 and 1
  double reduceBytes;   // per element on the wire
  double weightBytes;
  uint64_t buckets, units;
  double forwardFlops, backwardFlops;      // per token
  double forwardSeconds, backwardSeconds;  // per micro-batch
};

Step describe(const pealZeroPlanInput_t& input) {
  const auto trained = static_cast<double>(input.parameters);
  const auto frozen = static_cast<double>(input.frozenParameters);
  const auto microBatches = static_cast<double>(input.microBatches);
  Step step{input,
            trained,
            trained + frozen,
            microBatches,
            input.reduceEachMicroBatch != 0 ? microBatches : 1,
            static_cast<double>(input.reduceBytes > 0 ? input.reduceBytes : input.gradientBytes),
            static_cast<double>(input.weightBytes),
            bucketCount(input),
            std::max<uint64_t>(1, input.units),
            2 * (trained + frozen),
            4 * trained + 2 * frozen,
            0,
            0};
  if (input.flopsPerSecond > 0) {
    step.forwardSeconds = step.forwardFlops * input.tokens / input.flopsPerSecond;
    step.backwardSeconds = step.backwardFlops * input.tokens / input.flopsPerSecond;
  }
  return step;
}

void addTime(const Step& step, const std::vector<Phase>& phases, double moreExposed,
             pealZeroPlanStage_t& row) {
  row.communicationSeconds = row.networkSeconds + row.groupSeconds;
  const bool computes = step.input.tokens > 0 && step.input.flopsPerSecond > 0;
  row.exposedSeconds = computes ? moreExposed : row.communicationSeconds;
  for (const Phase& phase : phases) {
    row.tokensToHide = std::max(row.tokensToHide, tokensToHide(phase, step.input.flopsPerSecond));
    if (computes) {
      row.exposedSeconds += exposed(phase);
    }
  }
}

// What a row sends among `shards` ranks, and where: HSDP inside the group, the others over the network.
struct Inside {
  int64_t shards;
  double factor;     // of elements that leave a rank
  double bandwidth;  // 0: not known
};

Inside insideOf(const pealZeroPlanInput_t& input, int rowIndex) {
  const bool grouped = isGrouped(rowIndex);
  const int64_t shards = grouped ? input.group : input.ranks;
  const bool fastGroup = grouped && input.groupBytesPerSecond > 0;
  return {shards, others(shards), fastGroup ? input.groupBytesPerSecond : input.networkBytesPerSecond};
}

// Books what is sent inside: as the group's if there are groups.
void addInside(const Step& step, int rowIndex, const Inside& inside, double reduceBytes, double gatherBytes,
               uint64_t calls, pealZeroPlanStage_t& row) {
  row.messages = static_cast<uint64_t>(inside.shards - 1) * calls;
  const double bytes = reduceBytes + gatherBytes;
  const double seconds = inside.bandwidth > 0 ? bytes / inside.bandwidth + static_cast<double>(row.messages) *
                                                                               step.input.latencySeconds
                                              : 0;
  if (isGrouped(rowIndex)) {
    row.groupBytesSent = bytes;
    row.groupSeconds = seconds;
    return;
  }
  row.reduceBytesSent = reduceBytes;
  row.gatherBytesSent = gatherBytes;
  row.bytesSent = bytes;
  row.networkSeconds = seconds;
}

// HSDP: the all-reduce of the shards over the replicas, in `pieces`, beside the backward pass. Its first half
// may carry wider sums.
void addReplicas(const Step& step, uint64_t pieces, std::vector<Phase>& phases, pealZeroPlanStage_t& row) {
  const pealZeroPlanInput_t& input = step.input;
  const int64_t replicas = input.ranks / input.group;
  const double sumBytes = input.replicaSumBytes > 0 ? input.replicaSumBytes : step.reduceBytes;
  const double shard = step.trained / static_cast<double>(input.group);
  const double once = shard * (sumBytes + step.reduceBytes) * others(replicas);
  row.replicaElements = step.reductions * 2 * shard;
  row.bytesSent = step.reductions * once;
  row.reduceBytesSent = row.bytesSent;
  if (replicas == 1) {
    return;
  }
  row.allReduces = pieces * static_cast<uint64_t>(step.reductions);
  const uint64_t messages = 2 * static_cast<uint64_t>(replicas - 1) * row.allReduces;
  row.messages += messages;
  if (input.networkBytesPerSecond > 0) {
    row.networkSeconds =
        row.bytesSent / input.networkBytesPerSecond + static_cast<double>(messages) * input.latencySeconds;
  }
  phases.push_back({step.backwardSeconds, step.backwardFlops, once, input.networkBytesPerSecond, pieces});
}

// Stages 0 to 2: gradients go out in buckets during backward. Stage 0 all-reduces them; the others
// reduce-scatter them and gather the new weights while the next forward pass begins.
void planReplicated(const Step& step, int rowIndex, pealZeroPlanStage_t& row) {
  const int stage = stageOfRow(rowIndex);
  const Inside inside = insideOf(step.input, rowIndex);
  const double reductions = stage == 2 ? step.microBatches : step.reductions;
  const double reduced = (stage == 0 ? 2 : 1) * step.trained;
  const double gathered = stage == 0 ? 0 : step.trained;
  row.elements = reductions * reduced + gathered;
  const auto reduceCalls = static_cast<uint64_t>(reductions) * step.buckets;
  row.allReduces = stage == 0 ? reduceCalls : 0;
  row.reduceScatters = stage == 0 ? 0 : reduceCalls;
  row.allGathers = stage == 0 ? 0 : step.buckets;
  const double once = reduced * step.reduceBytes * inside.factor;
  const double gatherBytes = gathered * step.weightBytes * inside.factor;
  addInside(step, rowIndex, inside, reductions * once, gatherBytes,
            2 * row.allReduces + row.reduceScatters + row.allGathers, row);
  // Reductions of micro-batches before the last have the whole next micro-batch to hide behind.
  const double before = inside.bandwidth > 0
                            ? (reductions - 1) * std::max(0.0, once / inside.bandwidth - step.forwardSeconds -
                                                                   step.backwardSeconds)
                            : 0;
  std::vector<Phase> phases{
      {step.backwardSeconds, step.backwardFlops, once, inside.bandwidth, step.buckets},
      {step.forwardSeconds, step.forwardFlops, gatherBytes, inside.bandwidth, step.buckets}};
  if (isGrouped(rowIndex)) {
    addReplicas(step, step.buckets, phases, row);
  }
  addTime(step, phases, before, row);
}

// Stage 3: units are gathered for each pass and their gradients reduce-scattered, in every micro-batch.
void planSharded(const Step& step, int rowIndex, pealZeroPlanStage_t& row) {
  const pealZeroPlanInput_t& input = step.input;
  const Inside inside = insideOf(input, rowIndex);
  const double unitsKept = input.reshardAfterForward != 0
                               ? static_cast<double>(input.keptUnits) / static_cast<double>(step.units)
                               : 1;
  const double m = step.microBatches;
  const double forwardBytes = step.all * step.weightBytes * inside.factor;
  const double backwardBytes = forwardBytes * (1 - unitsKept);
  const double reduceBytes = step.trained * step.reduceBytes * inside.factor;
  row.elements = m * (step.trained + (2 - unitsKept) * step.all);
  row.reduceScatters = step.units * static_cast<uint64_t>(input.microBatches);
  const uint64_t regathered =
      input.reshardAfterForward != 0 ? step.units - std::min(step.units, input.keptUnits) : 0;
  row.allGathers = (step.units + regathered) * static_cast<uint64_t>(input.microBatches);
  addInside(step, rowIndex, inside, m * reduceBytes, m * (forwardBytes + backwardBytes),
            row.reduceScatters + row.allGathers, row);

  std::vector<Phase> phases;
  phases.push_back({step.forwardSeconds, step.forwardFlops, forwardBytes, inside.bandwidth, step.units});
  phases.push_back(
      {step.backwardSeconds, step.backwardFlops, backwardBytes + reduceBytes, inside.bandwidth, step.units});
  double perMicroBatch = 0;
  for (const Phase& phase : phases) {
    perMicroBatch += exposed(phase);
  }
  if (isGrouped(rowIndex)) {
    addReplicas(step, step.units, phases, row);
  }
  addTime(step, phases, (m - 1) * perMicroBatch, row);
}

// The fewest shards with which the row's total fits. Memory never grows with the number of shards: buffers
// for replicas, of which the largest group has none, are left out.
int64_t shardsNeeded(const pealZeroPlanInput_t& input, int stage) {
  const auto fitsWith = [&](int64_t shards) {
    return static_cast<double>(planMemory(input, stage, shards, 0, Replicas::None).total) <=
           input.deviceBytes;
  };
  int64_t most = static_cast<int64_t>(std::max<uint64_t>(1, input.parameters + input.frozenParameters));
  if (input.deviceBytes <= 0 || !fitsWith(most)) {
    return 0;
  }
  int64_t least = 1;
  while (least < most) {
    const int64_t middle = least + (most - least) / 2;
    if (fitsWith(middle)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return least;
}

}  // namespace

Result<pealZeroPlan_t> makePlan(const pealZeroPlanInput_t& input) {
  PEAL_TRY(checkPlanInput(input));
  const Step step = describe(input);
  pealZeroPlan_t plan{};
  plan.forwardSeconds = step.microBatches * step.forwardSeconds;
  plan.backwardSeconds = step.microBatches * step.backwardSeconds;
  plan.computeSeconds = plan.forwardSeconds + plan.backwardSeconds;
  plan.flops = (step.forwardFlops + step.backwardFlops) * input.tokens * step.microBatches;
  for (int index = 0; index < pealZeroPlanStages; ++index) {
    if (isGrouped(index) && input.group == 0) {
      continue;
    }
    const int stage = stageOfRow(index);
    const int64_t shards = isGrouped(index) ? input.group : input.ranks;
    pealZeroPlanStage_t& row = plan.stages[index];
    row = planMemory(input, stage, shards, input.rank % shards,
                     shards < input.ranks ? Replicas::Some : Replicas::None);
    row.fits = input.deviceBytes <= 0 || static_cast<double>(row.total) <= input.deviceBytes ? 1 : 0;
    row.ranksNeeded = shardsNeeded(input, stage);
    if (stage <= 2) {
      planReplicated(step, index, row);
    } else {
      planSharded(step, index, row);
    }
  }
  recommendStage(input, plan);
  return plan;
}

}  // namespace peal::zero

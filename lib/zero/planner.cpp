// Communication and time of a step.
//
// Time hides where there is something to hide behind; what that means for each stage stands in docs/ZERO.md,
// and `phases` below is its text in code: a phase is a stretch of computing with the bytes that may be sent
// meanwhile, in equal pieces.
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

// Stages 0 to 2: gradients go out in buckets during backward. Stage 0 all-reduces them; the others
// reduce-scatter them and gather the new weights while the next forward pass begins.
void planReplicated(const Step& step, int stage, pealZeroPlanStage_t& row) {
  const pealZeroPlanInput_t& input = step.input;
  const double factor = others(input.ranks);
  const double reductions = stage == 2 ? step.microBatches : step.reductions;
  const double reduced = (stage == 0 ? 2 : 1) * step.trained;
  const double gathered = stage == 0 ? 0 : step.trained;
  row.elements = reductions * reduced + gathered;
  row.reduceBytesSent = reductions * reduced * step.reduceBytes * factor;
  row.gatherBytesSent = gathered * step.weightBytes * factor;
  row.bytesSent = row.reduceBytesSent + row.gatherBytesSent;
  const auto reduceCalls = static_cast<uint64_t>(reductions) * step.buckets;
  row.allReduces = stage == 0 ? reduceCalls : 0;
  row.reduceScatters = stage == 0 ? 0 : reduceCalls;
  row.allGathers = stage == 0 ? 0 : step.buckets;
  row.messages =
      static_cast<uint64_t>(input.ranks - 1) * (2 * row.allReduces + row.reduceScatters + row.allGathers);
  const double bandwidth = input.networkBytesPerSecond;
  if (bandwidth > 0) {
    row.networkSeconds = row.bytesSent / bandwidth + static_cast<double>(row.messages) * input.latencySeconds;
  }
  const double once = row.reduceBytesSent / reductions;
  // Reductions of micro-batches before the last have the whole next micro-batch to hide behind.
  const double before =
      bandwidth > 0
          ? (reductions - 1) * std::max(0.0, once / bandwidth - step.forwardSeconds - step.backwardSeconds)
          : 0;
  addTime(step,
          {{step.backwardSeconds, step.backwardFlops, once, bandwidth, step.buckets},
           {step.forwardSeconds, step.forwardFlops, row.gatherBytesSent, bandwidth, step.buckets}},
          before, row);
}

// Stage 3 over `shards` ranks, and for HSDP the all-reduce of the shards over the replicas.
void planSharded(const Step& step, int stage, int64_t shards, pealZeroPlanStage_t& row) {
  const pealZeroPlanInput_t& input = step.input;
  const int64_t replicas = input.ranks / shards;
  const bool grouped = stage == pealZeroPlanHsdp;
  const double unitsKept = input.reshardAfterForward != 0
                               ? static_cast<double>(input.keptUnits) / static_cast<double>(step.units)
                               : 1;
  const double factor = others(shards);
  const double m = step.microBatches;
  const double forwardBytes = step.all * step.weightBytes * factor;
  const double backwardBytes = forwardBytes * (1 - unitsKept);
  const double reduceBytes = step.trained * step.reduceBytes * factor;
  const double inside = m * (forwardBytes + backwardBytes + reduceBytes);
  row.elements = m * (step.trained + (2 - unitsKept) * step.all);
  row.reduceScatters = step.units * static_cast<uint64_t>(input.microBatches);
  const uint64_t regathered =
      input.reshardAfterForward != 0 ? step.units - std::min(step.units, input.keptUnits) : 0;
  row.allGathers = (step.units + regathered) * static_cast<uint64_t>(input.microBatches);
  const uint64_t insideMessages = static_cast<uint64_t>(shards - 1) * (row.reduceScatters + row.allGathers);

  std::vector<Phase> phases;
  const bool fastGroup = grouped && input.groupBytesPerSecond > 0;
  const double bandwidth = fastGroup ? input.groupBytesPerSecond : input.networkBytesPerSecond;
  phases.push_back({step.forwardSeconds, step.forwardFlops, forwardBytes, bandwidth, step.units});
  phases.push_back(
      {step.backwardSeconds, step.backwardFlops, backwardBytes + reduceBytes, bandwidth, step.units});
  double perMicroBatch = 0;
  for (const Phase& phase : phases) {
    perMicroBatch += exposed(phase);
  }
  const double insideSeconds =
      bandwidth > 0 ? inside / bandwidth + static_cast<double>(insideMessages) * input.latencySeconds : 0;
  row.messages = insideMessages;
  if (!grouped) {
    row.reduceBytesSent = m * reduceBytes;
    row.gatherBytesSent = m * (forwardBytes + backwardBytes);
    row.bytesSent = inside;
    row.networkSeconds = insideSeconds;
    addTime(step, phases, (m - 1) * perMicroBatch, row);
    return;
  }
  row.groupBytesSent = inside;
  row.groupSeconds = insideSeconds;
  // An all-reduce's two halves, whose first may carry wider sums.
  const double sumBytes = input.replicaSumBytes > 0 ? input.replicaSumBytes : step.reduceBytes;
  const double once =
      step.trained / static_cast<double>(shards) * (sumBytes + step.reduceBytes) * others(replicas);
  row.bytesSent = step.reductions * once;
  row.reduceBytesSent = row.bytesSent;
  if (replicas > 1) {
    row.allReduces = step.units * static_cast<uint64_t>(step.reductions);
    const uint64_t replicaMessages = 2 * static_cast<uint64_t>(replicas - 1) * row.allReduces;
    row.messages += replicaMessages;
    if (input.networkBytesPerSecond > 0) {
      row.networkSeconds = row.bytesSent / input.networkBytesPerSecond +
                           static_cast<double>(replicaMessages) * input.latencySeconds;
    }
    phases.push_back(
        {step.backwardSeconds, step.backwardFlops, once, input.networkBytesPerSecond, step.units});
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
  for (int stage = 0; stage < pealZeroPlanStages; ++stage) {
    if (stage == pealZeroPlanHsdp && input.group == 0) {
      continue;
    }
    const int64_t shards = stage == pealZeroPlanHsdp ? input.group : input.ranks;
    pealZeroPlanStage_t& row = plan.stages[stage];
    row = planMemory(input, stage, shards, input.rank % shards,
                     shards < input.ranks ? Replicas::Some : Replicas::None);
    row.fits = input.deviceBytes <= 0 || static_cast<double>(row.total) <= input.deviceBytes ? 1 : 0;
    row.ranksNeeded = shardsNeeded(input, stage);
    if (stage <= 2) {
      planReplicated(step, stage, row);
    } else {
      planSharded(step, stage, shards, row);
    }
  }
  recommendStage(input, plan);
  return plan;
}

}  // namespace peal::zero

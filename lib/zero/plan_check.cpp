// Is what pealZeroPlan was given possible? Bounds keep every product of the planner inside its type.
#include <fmt/format.h>

#include <cmath>
#include <initializer_list>

#include "lib/zero/planner.h"

namespace peal::zero {
namespace {

constexpr double kMostElements = 1e15;
constexpr double kMostRanks = 1e12;  // more than exist, so that limits can be asked for
constexpr double kMostCount = 1e6;   // micro-batches, slots

struct Range {
  const char* name;
  double value, least, most;
};

Result<void> checkRanges(std::initializer_list<Range> ranges) {
  for (const Range& range : ranges) {
    if (!(range.value >= range.least && range.value <= range.most)) {
      return Error{pealInvalidArgument, fmt::format("the plan's {} is {}; it must be from {} to {}",
                                                    range.name, range.value, range.least, range.most)};
    }
  }
  return {};
}

}  // namespace

Result<void> checkPlanInput(const pealZeroPlanInput_t& input) {
  if (input.size != sizeof input || input.magic != PEAL_ZERO_MAGIC) {
    return Error{pealInvalidArgument,
                 fmt::format("the plan's input has size {} and magic {:#x}, not {} and {:#x}; start from "
                             "PEAL_ZERO_PLAN_INITIALIZER of this version's header",
                             input.size, input.magic, sizeof input, PEAL_ZERO_MAGIC)};
  }
  const auto number = [](auto value) { return static_cast<double>(value); };
  const double ranks = number(input.ranks);
  PEAL_TRY(checkRanges({
      {"parameters", number(input.parameters), 0, kMostElements},
      {"frozenParameters", number(input.frozenParameters), 0, kMostElements},
      {"weightBytes", number(input.weightBytes), 1, 8},
      {"gradientBytes", number(input.gradientBytes), 1, 8},
      {"optimizerBytes", number(input.optimizerBytes), 0, 64},
      {"reduceBytes", number(input.reduceBytes), 0, 8},
      {"replicaSumBytes", number(input.replicaSumBytes), 0, 8},
      {"ranks", ranks, 1, kMostRanks},
      {"rank", number(input.rank), 0, ranks - 1},
      {"group", number(input.group), 0, ranks},
      {"microBatches", number(input.microBatches), 1, kMostCount},
      {"tokens", input.tokens, 0, 1e18},
      {"bucketBytes", number(input.bucketBytes), 1, 1e18},
      {"buckets", number(input.buckets), 0, kMostElements},
      {"bucketElements", number(input.bucketElements), 0, kMostElements},
      {"bucketSlots", number(input.bucketSlots), 1, 64},
      {"units", number(input.units), 0, kMostCount},
      {"keptUnits", number(input.keptUnits), 0, number(input.units)},
      {"unitElements", number(input.unitElements), 0, kMostElements},
      {"unitTrained", number(input.unitTrained), 0, kMostElements},
      {"unitSlots", number(input.unitSlots), 1, 4096},
      {"unitGradientSlots", number(input.unitGradientSlots), 1, 64},
      {"activationBytes", input.activationBytes, 0, 1e18},
      {"layers", input.layers, 0, kMostCount},
      {"activations (34 * sequence * sequences * hidden * layers)",
       34 * input.sequence * input.sequences * input.hidden * input.layers, 0, 1e18},
      {"flopsPerSecond", input.flopsPerSecond, 0, 1e24},
      {"networkBytesPerSecond", input.networkBytesPerSecond, 0, 1e18},
      {"groupBytesPerSecond", input.groupBytesPerSecond, 0, 1e18},
      {"latencySeconds", input.latencySeconds, 0, 1e6},
      {"deviceBytes", input.deviceBytes, 0, 1e18},
  }));
  if (input.group > 0 && input.ranks % input.group != 0) {
    return Error{pealInvalidArgument, fmt::format("the plan's group of {} does not divide its {} ranks",
                                                  input.group, input.ranks)};
  }
  return {};
}

}  // namespace peal::zero

// Which stage to choose, and why, in words.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "lib/zero/planner.h"

namespace peal::zero {
namespace {

constexpr std::array<const char*, pealZeroPlanStages> kStageNames{
    "stage 0", "stage 1", "stage 2", "stage 3", "HSDP", "HSDP stage 1", "HSDP stage 2"};

// Seconds where bandwidths are known, else bytes.
double costOf(const pealZeroPlanInput_t& input, const pealZeroPlanStage_t& row) {
  return input.networkBytesPerSecond > 0 ? row.communicationSeconds : row.bytesSent + row.groupBytesSent;
}

// Of the stages that fit, the one that communicates least; of equals, the one with the least memory. -1:
// none.
int choose(const pealZeroPlanInput_t& input, const pealZeroPlan_t& plan) {
  int best = -1;
  for (int i = 0; i < pealZeroPlanStages; ++i) {
    const pealZeroPlanStage_t& row = plan.stages[i];
    if (row.valid == 0 || row.fits == 0) {
      continue;
    }
    const double saved = best < 0 ? 1 : costOf(input, plan.stages[best]) - costOf(input, row);
    if (saved > 0 || (saved == 0 && row.total < plan.stages[best].total)) {
      best = i;
    }
  }
  return best;
}

int smallestStage(const pealZeroPlan_t& plan) {
  int smallest = 0;
  for (int i = 1; i < pealZeroPlanStages; ++i) {
    if (plan.stages[i].valid != 0 && plan.stages[i].total < plan.stages[smallest].total) {
      smallest = i;
    }
  }
  return smallest;
}

std::string gigabytes(double bytes) {
  constexpr double kLeast = 1e6;
  return bytes < kLeast ? fmt::format("{:.0f} bytes", bytes) : fmt::format("{:.4g} GB", bytes / 1e9);
}

std::string time(double seconds) {
  return seconds < 1 ? fmt::format("{:.4g} ms", seconds * 1e3) : fmt::format("{:.4g} s", seconds);
}

std::string whyNone(const pealZeroPlanInput_t& input, const pealZeroPlan_t& plan) {
  const int smallest = smallestStage(plan);
  const pealZeroPlanStage_t& row = plan.stages[smallest];
  return fmt::format("Nothing fits in {}: {} needs {} with {} {}, of which activations {}. {}",
                     gigabytes(input.deviceBytes), kStageNames[static_cast<size_t>(smallest)],
                     gigabytes(static_cast<double>(row.total)), input.ranks,
                     input.ranks == 1 ? "rank" : "ranks", gigabytes(static_cast<double>(row.activations)),
                     row.ranksNeeded > 0 ? fmt::format("It fits with {} ranks.", row.ranksNeeded)
                                         : "No number of ranks changes that.");
}

std::string whyThis(const pealZeroPlanInput_t& input, const pealZeroPlanStage_t& row) {
  const std::string among =
      input.deviceBytes > 0 ? fmt::format(" of the stages that fit in {}", gigabytes(input.deviceBytes)) : "";
  if (input.networkBytesPerSecond > 0) {
    const bool isGrouped = row.groupBytesSent > 0;
    return fmt::format(
        "It spends least time on communication{}, and has the least memory of those that spend as little: {} "
        "a "
        "step, for {} sent {}{}, and {} held per rank.",
        among, time(row.communicationSeconds), gigabytes(row.bytesSent),
        isGrouped ? "between groups and " : "over the network",
        isGrouped ? fmt::format("{} inside", gigabytes(row.groupBytesSent)) : "",
        gigabytes(static_cast<double>(row.total)));
  }
  return fmt::format(
      "It communicates least{}, and has the least memory of those that communicate as little: "
      "{} sent and {} held per rank.",
      among, gigabytes(row.bytesSent + row.groupBytesSent), gigabytes(static_cast<double>(row.total)));
}

}  // namespace

void recommendStage(const pealZeroPlanInput_t& input, pealZeroPlan_t& plan) {
  plan.recommended = choose(input, plan);
  const std::string reason =
      plan.recommended < 0 ? whyNone(input, plan) : whyThis(input, plan.stages[plan.recommended]);
  const size_t length = std::min(reason.size(), sizeof plan.reason - 1);
  std::memcpy(plan.reason, reason.data(), length);
  plan.reason[length] = '\0';
}

}  // namespace peal::zero

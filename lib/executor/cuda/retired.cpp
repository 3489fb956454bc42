#include "lib/executor/cuda/retired.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <vector>

#include "lib/executor/cuda/executor.h"

namespace peal::cuda {
namespace {

// Never destroyed: at the end of the process the driver frees everything, and may be gone already.
struct Retired {
  std::mutex mutex;  // guards kept
  std::vector<std::unique_ptr<Resources>> kept;
};
Retired& retired() {
  static auto* const all = new Retired;
  return *all;
}

bool isUsed(const Resources& resources) {
  if (resources.order->liveGraphs() > 0) {
    return true;
  }
  const Result<bool> idle = resources.order->idle();
  return idle && !*idle;  // an error: the device is lost, and nothing runs there
}

}  // namespace

void retire(std::unique_ptr<Resources> resources) {
  Retired& all = retired();
  const std::lock_guard lock(all.mutex);
  all.kept.push_back(std::move(resources));
}

void freeRetired() {
  const RelaxedCapture relaxed;
  std::vector<std::unique_ptr<Resources>> unused;
  Retired& all = retired();
  {
    const std::lock_guard lock(all.mutex);
    const auto begin = std::stable_partition(all.kept.begin(), all.kept.end(),
                                             [](const auto& resources) { return isUsed(*resources); });
    std::move(begin, all.kept.end(), std::back_inserter(unused));
    all.kept.erase(begin, all.kept.end());
  }
}

}  // namespace peal::cuda

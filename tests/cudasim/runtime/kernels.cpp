#include "tests/cudasim/runtime/kernels.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "tests/cudasim/runtime/state.h"

namespace peal::cudasim {
namespace {

cudaError_t errorOf(TrapKind kind) {
  switch (kind) {
    case TrapKind::Misaligned:
      return cudaErrorMisalignedAddress;
    case TrapKind::OutOfBounds:
    case TrapKind::Freed:
    case TrapKind::Closed:
    case TrapKind::HostMemory:
    case TrapKind::Device:
      return cudaErrorIllegalAddress;
    case TrapKind::Stack:
      return cudaErrorHardwareStackError;
    case TrapKind::Deadlock:
    case TrapKind::NoProgress:
      return cudaErrorLaunchTimeout;
    default:
      return cudaErrorLaunchFailure;
  }
}

int blocksOf(const Launch& launch) { return static_cast<int>(launch.grid.x * launch.grid.y * launch.grid.z); }

// Blocks of these launches by device, at most as many as a device holds.
std::map<int, int> demandOf(const std::vector<const Launch*>& launches, int cap) {
  std::map<int, int> demand;
  for (const Launch* launch : launches) {
    int& blocks = demand[launch->device];
    blocks = std::min(cap, blocks + blocksOf(*launch));
  }
  return demand;
}

// Room on the devices for as long as it lives. A grid that does not fit beside the running ones waits until
// it does: a GPU would start some of its blocks earlier, which changes nothing for kernels whose blocks wait
// for each other.
class Residency {
 public:
  explicit Residency(const std::vector<const Launch*>& launches) {
    Lock lock(runtime().mutex);
    const int cap = runtime().machine.multiprocessors * runtime().machine.blocksPerMultiprocessor;
    demand_ = demandOf(launches, cap);
    runtime().residentChanged.wait(lock, [&] {
      return std::all_of(demand_.begin(), demand_.end(), [&](const auto& need) {
        return runtime().residentBlocks[need.first] + need.second <= cap;
      });
    });
    for (const auto& [device, blocks] : demand_) {
      runtime().residentBlocks[device] += blocks;
    }
  }
  ~Residency() {
    const Lock lock(runtime().mutex);
    for (const auto& [device, blocks] : demand_) {
      runtime().residentBlocks[device] -= blocks;
    }
    runtime().residentChanged.notify_all();
  }
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

 private:
  std::map<int, int> demand_;
};

// Under the runtime's lock. Kernels that still run on the device end, too.
void markLost(Runtime& all, int device, cudaError_t error) {
  all.lost.emplace(device, error);
  all.cancelled[static_cast<size_t>(device)] = true;
}

}  // namespace

void runLaunches(const std::vector<const Launch*>& launches, World world) {
  const Residency residency(launches);
  std::vector<Grid> grids;
  for (const Launch* launch : launches) {
    grids.push_back(
        {launch->grid, launch->block, launch->sharedBytes, launch->body, launch->device, launch->name});
  }
  std::vector<Grid*> pointers;
  for (Grid& grid : grids) {
    pointers.push_back(&grid);
  }
  const OnTrap onTrap = runtime().trapsAreErrors ? OnTrap::Return : OnTrap::EndProcess;
  const auto& cancelled = runtime().cancelled[static_cast<size_t>(launches.front()->device)];
  const RunResult result = run(pointers, world, onTrap, &cancelled);
  if (result.ok() || result.kind == TrapKind::Cancelled) {
    return;
  }
  const Lock lock(runtime().mutex);
  runtime().trapReports.push_back(result.text);
  for (const Launch* launch : launches) {
    markLost(runtime(), launch->device, errorOf(result.kind));
  }
}

void loseDevice(int device, cudaError_t error, const std::string& report) {
  if (!runtime().trapsAreErrors) {
    std::fprintf(stderr, "cudasim: %s\n", report.c_str());
    std::_Exit(kTrapStatus);
  }
  const Lock lock(runtime().mutex);
  runtime().trapReports.push_back(report);
  markLost(runtime(), device, error);
}

}  // namespace peal::cudasim

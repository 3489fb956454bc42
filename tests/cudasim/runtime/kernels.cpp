#include "tests/cudasim/runtime/kernels.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>

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

// Under the runtime's lock. Kernels that still run on the device end, too.
void markLost(Runtime& all, int device, cudaError_t error) {
  all.lost.emplace(device, error);
  all.cancelled[static_cast<size_t>(device)] = true;
}

}  // namespace

void runLaunches(const std::vector<const Launch*>& launches, World world, const NextLaunches& next) {
  struct Running {
    Grid grid;
    const Launch* launch;
  };
  std::deque<Running> running;  // addresses stay
  const auto gridsOf = [&running](const std::vector<const Launch*>& some) {
    std::vector<Grid*> grids;
    for (const Launch* launch : some) {
      running.push_back(
          {{launch->grid, launch->block, launch->sharedBytes, launch->body, launch->device, launch->name},
           launch});
      grids.push_back(&running.back().grid);
    }
    return grids;
  };
  Successors successors;
  if (next) {
    successors = [&](const Grid& finished) {
      const auto found = std::find_if(running.begin(), running.end(),
                                      [&](const Running& one) { return &one.grid == &finished; });
      return gridsOf(next(*found->launch));
    };
  }
  const OnTrap onTrap = runtime().trapsAreErrors ? OnTrap::Return : OnTrap::EndProcess;
  const auto& cancelled = runtime().cancelled[static_cast<size_t>(launches.front()->device)];
  const RunResult result = run(gridsOf(launches), world, onTrap, &cancelled, successors);
  if (result.ok() || result.kind == TrapKind::Cancelled) {
    return;
  }
  const Lock lock(runtime().mutex);
  runtime().trapReports.push_back(result.text);
  for (const Running& one : running) {
    markLost(runtime(), one.launch->device, errorOf(result.kind));
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

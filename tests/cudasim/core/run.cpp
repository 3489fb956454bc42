#include "tests/cudasim/core/run.h"

#include <utility>

#include "tests/cudasim/core/sanitizers.h"
#include "tests/cudasim/core/scheduler.h"

namespace peal::cudasim {

Executor::Executor(World world_, OnTrap onTrap_, const std::atomic<bool>* cancelled_)
    : options(cudasim::options()),
      world(world_),
      onTrap(onTrap_),
      cancelled(cancelled_),
      random(static_cast<uint64_t>(options.seed)),
      randomOrder(options.random != 0 || options.starve != 0) {}

namespace {

void addPending(const Grid& grid) {
  const uint64_t threads = uint64_t{grid.block.x} * grid.block.y * grid.block.z;
  const uint64_t blocks = uint64_t{grid.grid.x} * grid.grid.y * grid.grid.z;
  if (threads == 0 || threads > 1024 || blocks == 0 || blocks > 0x7fffffff) {
    trap(TrapKind::Launch, "a grid of %llu blocks of %llu threads: 1 to 2^31 - 1 blocks of 1 to 1024 threads",
         static_cast<unsigned long long>(blocks), static_cast<unsigned long long>(threads));
  }
  if (grid.sharedBytes > kMostSharedBytes) {
    trap(TrapKind::Launch, "%zu bytes of dynamic shared memory: a block has at most %zu", grid.sharedBytes,
         kMostSharedBytes);
  }
  if (grid.device < 0 || grid.device >= 64) {
    trap(TrapKind::Launch, "device %d: there are 0 to 63", grid.device);
  }
  for (uint32_t index = 0; index < blocks; ++index) {
    executor->pending.push_back({&grid, index});
  }
  executor->unfinished[&grid] = blocks;
}

// What follows the grids whose last block has been retired.
void addSuccessors(const Successors& successors) {
  const std::vector<const Grid*> finished = std::exchange(executor->finishedGrids, {});
  for (const Grid* grid : finished) {
    if (successors) {
      for (const Grid* next : successors(*grid)) {
        addPending(*next);
      }
    }
  }
}

void runAll(const Successors& successors) {
  Executor& e = *executor;
  while (e.result.ok()) {
    retireFinishedBlocks();
    addSuccessors(successors);
    startBlocks();
    if (e.ready.size() != 0) {
      enterFibers();
    } else if (e.live == 0 && e.pending.empty()) {
      return;
    } else {
      nobodyCanRun();
    }
  }
}

}  // namespace

RunResult run(std::span<Grid* const> grids, World world, OnTrap onTrap, const std::atomic<bool>* cancelled,
              const Successors& successors) {
  if (executor != nullptr) {
    trap(TrapKind::Launch, "run() called from a kernel");
  }
  Executor state(world, onTrap, cancelled);
  executor = &state;
#ifdef CUDASIM_TSAN
  hot.weak = false;  // the sanitizer must see every access where it is made
#else
  hot.weak = state.options.weak != 0;
#endif
  hot.untilPreempt = nextPreemption();
  adopt(state.root);
  try {
    for (const Grid* grid : grids) {
      addPending(*grid);
    }
    runAll(successors);
  } catch (const RunEnded&) {  // by a trap on the root; the result says why
  }
  abandonBlocks();
  executor = nullptr;
  hot.untilPreempt = ~uint64_t{0};
  orderAcquire(&state.result);  // endRun() released, on the thread that trapped
  return std::move(state.result);
}

}  // namespace peal::cudasim

// Barriers of a block.
#include <cstring>

#include "tests/cudasim/core/sanitizers.h"
#include "tests/cudasim/core/scheduler.h"

namespace peal::cudasim {
namespace {

bool sameSite(const Site& a, const Site& b) {
  return !a.distinct || !b.distinct ||
         (a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0));
}

// Joins the barrier or says why not.
Barrier& arrive(int id, uint32_t threads, Reduction reduction, bool predicate, const Site& site) {
  Fiber& fiber = self();
  Block& block = *fiber.block;
  if (id < 0 || id >= kBarriers) {
    trap(TrapKind::Barrier, "barrier %d at %s:%u: a block has barriers 0 to 15", id, site.file, site.line);
  }
  if (threads % 32 != 0 || threads > (block.threads + 31) / 32 * 32) {
    trap(TrapKind::Barrier,
         "barrier %d at %s:%u for %u threads: must be a multiple of 32, and the block has %u", id, site.file,
         site.line, threads, block.threads);
  }
  Barrier& barrier = block.barriers[id];
  if (barrier.arrived == 0) {
    barrier.threads = threads;
    barrier.reduction = reduction;
    barrier.site = site;
    barrier.trues = 0;
  } else if (barrier.threads != threads || barrier.reduction != reduction) {
    trap(TrapKind::Barrier,
         "threads of a block disagree about barrier %d: %u threads (0: all) at %s:%u, %u at %s:%u", id,
         barrier.threads, barrier.site.file, barrier.site.line, threads, site.file, site.line);
  } else if (executor->options.sites != 0 && !sameSite(barrier.site, site)) {
    trap(TrapKind::Barrier,
         "threads of one block meet at different barriers: %u wait at %s:%u, this one comes to %s:%u",
         barrier.arrived, barrier.site.file, barrier.site.line, site.file, site.line);
  }
  orderRelease(&barrier.order[barrier.phase]);
  if (hot.weak) {
    block.memory->toBlock(block.storesOf(fiber));
  }
  ++barrier.arrived;
  barrier.trues += predicate ? 1 : 0;
  return barrier;
}

bool complete(const Block& block, const Barrier& barrier) {
  return barrier.arrived >= (barrier.threads != 0 ? barrier.threads : block.live);
}

uint32_t reduced(const Barrier& barrier) {
  switch (barrier.reduction) {
    case Reduction::Or:
      return barrier.trues != 0 ? 1 : 0;
    case Reduction::And:
      return barrier.trues == barrier.arrived ? 1 : 0;
    default:
      return barrier.trues;
  }
}

}  // namespace

void completeBarrier(Barrier& barrier) {
  const uint32_t result = reduced(barrier);
  for (Fiber* fiber = barrier.waiters.first; fiber != nullptr; fiber = fiber->nextWaiter) {
    fiber->barrierResult = result;
  }
  barrier.arrived = 0;
  barrier.phase ^= 1;
  wake(barrier.waiters);
}

uint32_t blockBarrier(int id, uint32_t threads, Reduction reduction, bool predicate, Site site) {
  Barrier& barrier = arrive(id, threads, reduction, predicate, site);
  Fiber& fiber = self();
  char* const order = &barrier.order[barrier.phase];
  if (complete(*fiber.block, barrier)) {
    fiber.barrierResult = reduced(barrier);
    completeBarrier(barrier);
    if (executor->randomOrder) {
      yield();  // or the last to arrive would always be the first to go on
    }
  } else {
    barrier.waiters.add(fiber);
    fiber.barrier = id;
    wait(FiberState::AtBarrier);
  }
  orderAcquire(order);
  return fiber.barrierResult;
}

void arriveAtBarrier(int id, uint32_t threads, Site site) {
  Barrier& barrier = arrive(id, threads, Reduction::None, false, site);
  if (complete(*self().block, barrier)) {
    completeBarrier(barrier);
  }
}

// Barriers of all threads are of those that have not exited.
void completeBarriersAfterExit(Block& block) {
  for (Barrier& barrier : block.barriers) {
    if (barrier.arrived != 0 && barrier.threads == 0 && complete(block, barrier)) {
      completeBarrier(barrier);
    }
  }
}

}  // namespace peal::cudasim

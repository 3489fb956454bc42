#include "tests/cudasim/core/scheduler.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "tests/cudasim/core/sanitizers.h"

namespace peal::cudasim {

constinit thread_local Hot hot;
constinit thread_local Executor* executor = nullptr;

namespace {

// Accesses between forced switches. Few enough that threads which share lines of memory stay close together:
// the caches of the host matter more than the switches.
constexpr uint64_t kFairPreemption = 128;
// Draws of a thread while one block is starved: that one runs once in 4 ^ (its share) or so.
constexpr int kStarvedDraws = 4;
constexpr uint64_t kStarvedFor = 5000;  // switches, on average

Fiber& choose() {
  Executor& e = *executor;
  if (e.randomOrder && e.ready.size() > 1) {
    if (e.options.starve != 0 && (e.result.switches == 0 || e.random.below(kStarvedFor) == 0)) {
      e.starved = e.blocks[e.random.below(e.blocks.size())].get();
    }
    for (int draw = 0; draw < kStarvedDraws; ++draw) {
      e.ready.bringToFront(e.random.below(e.ready.size()));
      if (e.ready[0].block != e.starved) {
        break;
      }
    }
  }
  return e.ready.pop();
}

void switchTo(Fiber& to, Leaving leaving) {
  Executor& e = *executor;
  Fiber* const fiber = hot.thread != nullptr ? &self() : nullptr;
  const uint64_t left = hot.untilPreempt;
  ++e.result.switches;
  e.result.trace = (e.result.trace ^ (uint64_t{to.block->ordinal} << 10 | to.linear)) * 0x100000001b3u;
  hot.thread = &to;
  switchContext(fiber != nullptr ? fiber->context : e.root, to.context, leaving);
  if (fiber != nullptr) {
    fiber->pollMark += hot.untilPreempt - left;  // what others did meanwhile does not count
  }
}

}  // namespace

void RunQueue::reserve(size_t fibers) {
  if (fibers <= places_.size()) {
    return;
  }
  std::vector<Fiber*> places(std::bit_ceil(fibers));
  for (size_t i = 0; i < count_; ++i) {
    places[i] = &(*this)[i];
  }
  places_ = std::move(places);
  head_ = 0;
}
void RunQueue::push(Fiber& fiber) { places_[(head_ + count_++) & (places_.size() - 1)] = &fiber; }
Fiber& RunQueue::pop() {
  Fiber& fiber = *places_[head_];
  head_ = (head_ + 1) & (places_.size() - 1);
  --count_;
  return fiber;
}
void RunQueue::bringToFront(size_t i) {
  std::swap(places_[head_], places_[(head_ + i) & (places_.size() - 1)]);
}

void Waiters::add(Fiber& fiber) {
  fiber.nextWaiter = nullptr;
  (first == nullptr ? first : last->nextWaiter) = &fiber;
  last = &fiber;
}

void wake(Waiters& waiters) {
  for (Fiber* fiber = waiters.first; fiber != nullptr; fiber = fiber->nextWaiter) {
    fiber->state = FiberState::Ready;
    executor->ready.push(*fiber);
  }
  waiters = {};
}

void yield() {
  Fiber& fiber = self();
  executor->ready.push(fiber);
  Fiber& next = choose();
  if (&next != &fiber) {
    switchTo(next, Leaving::ForNow);
  }
}

void wait(FiberState state) {
  self().state = state;
  if (executor->ready.size() != 0) {
    switchTo(choose(), Leaving::ForNow);
  } else {
    leaveToRoot(Leaving::ForNow);
  }
}

void leaveToRoot(Leaving leaving) {
  Fiber& fiber = self();
  hot.thread = nullptr;
  switchContext(fiber.context, executor->root, leaving);
}

void enterFibers() { switchTo(choose(), Leaving::ForNow); }

void exitThread() {
  Fiber& fiber = self();
  Block& block = *fiber.block;
  if (!block.stacks.whole(fiber.linear)) {
    trap(TrapKind::Stack, "a thread used more than its %zu bytes of stack (CUDASIM_STACK)",
         block.stacks.stackBytes());
  }
  if (hot.weak) {
    block.memory->toBlock(block.storesOf(fiber));
  }
  fiber.state = FiberState::Exited;
  --block.live;
  --executor->live;
  countChange();
  completeBarriersAfterExit(block);
  checkWarpsAfterExit(fiber);
  orderRelease(&block.finished);
  if (block.live == 0) {
    if (hot.weak) {
      block.memory->release(block.storesOf(fiber));
    }
    executor->finished.push_back(&block);
  }
  if (block.live != 0 && executor->ready.size() != 0) {
    switchTo(choose(), Leaving::ForGood);
  } else {
    leaveToRoot(Leaving::ForGood);
  }
  __builtin_unreachable();
}

uint64_t nextPreemption() {
  Executor& e = *executor;
  return e.randomOrder ? 1 + e.random.below(2 * static_cast<uint64_t>(e.options.preemptEvery))
                       : kFairPreemption;
}

bool coin() { return (executor->random.next() & 1) != 0; }

}  // namespace peal::cudasim

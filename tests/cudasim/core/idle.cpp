// Threads that wait: which polls are in vain, what to do when all are, and time.
#include <sched.h>
#include <time.h>

#include <algorithm>

#include "tests/cudasim/core/scheduler.h"

namespace peal::cudasim {
namespace {

// Accesses between forced switches that weigh as much as one poll in vain, if nothing changed meanwhile: a
// loop over weak loads that waits for a value is noticed, too.
constexpr uint64_t kAccessesPerPoll = 128;
// Polls of a thread after which it waits, even if every one was of another address.
constexpr uint32_t kLongStreak = 16;
constexpr uint64_t kFirstSkipNs = 1'000'000, kMostSkipNs = uint64_t{1} << 45;  // of time: 1 ms to 9 hours
// A nap may take ten times as long where the machine is busy, and most waits are for another thread's next
// step.
constexpr uint64_t kYieldsForNs = 300'000, kNapNs = 50'000;

std::atomic<uint64_t> skippedNs{0};

uint64_t vainPolls(const Fiber& fiber) { return fiber.vainSince == hot.changes ? fiber.vain : 0; }

// Half of what stores are delayed, by chance: in the end all become visible, in any order.
bool letStoresThrough() {
  bool any = false;
  for (const std::unique_ptr<Block>& block : executor->blocks) {
    for (uint32_t i = 0; i < block->threads; ++i) {
      any |= !block->stores[i].empty();
      block->memory->letSomeThrough(block->stores[i], coin);
    }
    any |= !block->memory->holdsNone();
    block->memory->letSomeThrough(coin);
  }
  return any;
}

bool anyoneReadsTheClock() {
  const RunQueue& ready = executor->ready;
  bool any = self().clockReadAt == hot.changes;
  for (size_t i = 0; i < ready.size(); ++i) {
    any = any || ready[i].clockReadAt == hot.changes;
  }
  return any;
}

void forgetVainPolls() {
  Executor& e = *executor;
  self().vain = 0;
  for (size_t i = 0; i < e.ready.size(); ++i) {
    e.ready[i].vain = 0;
  }
  e.vain = e.vainChecked = 0;
}

void noticeChanges() {
  Executor& e = *executor;
  if (e.vainSince != hot.changes) {
    e.vainSince = hot.changes;
    e.vain = e.vainChecked = e.idleSinceNs = 0;
    e.skipNs = kFirstSkipNs;
  }
}

void endIfCancelled() {
  if (executor->cancelled != nullptr && executor->cancelled->load(std::memory_order_relaxed)) {
    endRun(TrapKind::Cancelled, "the run was cancelled");
  }
}

// Gives the processor away, and ends the run if that has gone on for too long.
void waitForOthers() {
  Executor& e = *executor;
  endIfCancelled();
  const uint64_t now = monotonicNs();
  if (e.idleSinceNs == 0) {
    e.idleSinceNs = now;
  } else if (now - e.idleSinceNs > static_cast<uint64_t>(e.options.timeoutMs) * 1'000'000) {
    endRun(TrapKind::NoProgress, "no progress for " + std::to_string(e.options.timeoutMs) +
                                     " ms (CUDASIM_TIMEOUT_MS)" + deadlockReport());
  }
  if (now - e.idleSinceNs < kYieldsForNs) {
    sched_yield();
  } else {
    const timespec duration{0, kNapNs};
    nanosleep(&duration, nullptr);
  }
}

// Called about once for every round of polls in vain. Exact: a thread that has polled in vain since the last
// change of memory can only go on if memory changes or time passes.
void lookWhetherAllWait() {
  Executor& e = *executor;
  e.starved = nullptr;
  uint64_t least = vainPolls(self());
  for (size_t i = 0; i < e.ready.size() && least >= 2; ++i) {
    least = std::min(least, vainPolls(e.ready[i]));
  }
  if (least < 2) {
    return;
  }
  if (hot.weak && letStoresThrough()) {
    countChange();
    return;
  }
  if (std::any_of(e.pending.begin(), e.pending.end(), mayStart)) {
    e.ready.push(self());
    leaveToRoot(Leaving::ForNow);
    return;
  }
  if (e.world == World::Shared) {
    waitForOthers();
    return;
  }
  if (least < static_cast<uint64_t>(e.options.deadlockPolls)) {
    return;
  }
  if (anyoneReadsTheClock() && e.skipNs < kMostSkipNs) {
    skippedNs.fetch_add(e.skipNs, std::memory_order_relaxed);  // no order: only the threads here read it
    e.skipNs *= 4;
    forgetVainPolls();
    return;
  }
  endRun(TrapKind::Deadlock, "deadlock: every thread waits for what nobody will write" + deadlockReport());
}

}  // namespace

uint64_t monotonicNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void notedVain(Fiber& fiber, uint64_t polls) {
  Executor& e = *executor;
  if (fiber.vainSince != hot.changes) {
    fiber.vainSince = hot.changes;
    fiber.vain = 0;
  }
  fiber.vain += polls;
  noticeChanges();
  e.vain += polls;
  if (e.vain - e.vainChecked > e.ready.size()) {
    e.vainChecked = e.vain;
    lookWhetherAllWait();
  }
}

bool polledInVain(const void* address, uint64_t value) {
  Fiber& fiber = self();
  if (hot.untilPreempt != fiber.pollMark) {  // it does other things between
    fiber.streak = fiber.polls = fiber.nextPoll = 0;
  }
  ++fiber.streak;
  Poll* known = std::find_if(fiber.poll, fiber.poll + fiber.polls,
                             [address](const Poll& poll) { return poll.address == address; });
  bool inVain = fiber.streak > kLongStreak;
  if (known == fiber.poll + fiber.polls) {
    fiber.polls = static_cast<uint8_t>(std::min<size_t>(fiber.polls + 1u, kPolls));
    known = &fiber.poll[fiber.nextPoll++ % kPolls];
  } else if (known->value == value) {
    inVain = true;
  } else {
    countChange();  // by whoever it was: perhaps not a thread of this run
    inVain = false;
  }
  *known = {address, value};
  if (inVain) {
    notedVain(fiber, 1);
  }
  fiber.pollMark = hot.untilPreempt;
  return inVain;
}

void polled(const void* address, uint64_t value) {
  if (polledInVain(address, value) || (executor->randomOrder && executor->random.below(8) == 0)) {
    yield();
  }
}

void preempt() {
  hot.untilPreempt = nextPreemption();
  Fiber& fiber = self();
  endIfCancelled();
  if (fiber.preemptedAt == hot.changes) {
    notedVain(fiber, std::max<uint64_t>(1, hot.untilPreempt / kAccessesPerPoll));
  }
  fiber.preemptedAt = hot.changes;
  yield();
}

void nobodyCanRun() {
  Executor& e = *executor;
  if (e.live != 0) {
    endRun(TrapKind::Deadlock,
           "deadlock: threads wait for others of their block that will not come" + deadlockReport());
  }
  noticeChanges();
  waitForOthers();  // for the residency of blocks that other runs hold
}

uint64_t clockNs() {
  self().clockReadAt = hot.changes;
  return monotonicNs() + skippedNs.load(std::memory_order_relaxed);
}

void pause(uint32_t) { yield(); }

void halt() { trap(TrapKind::Halt, "the kernel called halt()"); }

}  // namespace peal::cudasim

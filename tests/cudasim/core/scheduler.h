// The scheduler's own state: threads, blocks, and the executor that runs them on one OS thread. Internal to
// core/: kernels see state.h, access.h and threads.h.
//
// A fiber runs until it waits, polls in vain, or has made its share of accesses. Blocks start and finish on
// the executor's root context only, and nothing on a fiber allocates or frees there: under the thread
// sanitizer every fiber is a thread of its own.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/cudasim/core/access.h"
#include "tests/cudasim/core/fiber.h"
#include "tests/cudasim/core/options.h"
#include "tests/cudasim/core/run.h"
#include "tests/cudasim/core/state.h"
#include "tests/cudasim/core/threads.h"
#include "tests/cudasim/core/weak_memory.h"

namespace peal::cudasim {

enum class FiberState : uint8_t { Ready, AtBarrier, InWarp, Exited };

// What a thread has polled lately.
struct Poll {
  const void* address;
  uint64_t value;
};
constexpr size_t kPolls = 4;

struct Fiber : Thread {
  Context context;
  Fiber* nextWaiter = nullptr;
  FiberState state = FiberState::Ready;
  uint8_t polls = 0, nextPoll = 0;
  uint32_t streak = 0;    // polls since another access
  uint64_t pollMark = 0;  // Hot::untilPreempt at the last poll: unlike now, there was another access
  uint64_t vain = 0;      // polls in vain while Hot::changes stayed vainSince
  uint64_t vainSince = ~uint64_t{0};
  uint64_t preemptedAt = ~uint64_t{0};  // Hot::changes at the last forced switch
  uint64_t clockReadAt = ~uint64_t{0};  // Hot::changes when it last read the clock
  uint32_t barrierResult = 0;
  int barrier = 0;        // waited at
  uint32_t warpMask = 0;  // waited in
  Poll poll[kPolls] = {};
};

struct Waiters {
  Fiber *first = nullptr, *last = nullptr;
  void add(Fiber& fiber);
};

struct Barrier {
  uint32_t arrived = 0, trues = 0;
  uint32_t threads = 0;  // expected; 0: all that have not exited
  Reduction reduction = Reduction::None;
  Site site{};
  Waiters waiters;
  uint8_t phase = 0;
  char order[2] = {};  // for the thread sanitizer: neighbouring phases apart
};

enum class WarpKind : uint8_t { Sync, Exchange, Ballot, LineLoad, LineStore };

// Operations of the lanes of one mask. Values alternate, because lanes may read one operation's results while
// others have begun the next.
struct WarpOperation {
  uint32_t mask = 0, arrived = 0;
  WarpKind kind = WarpKind::Sync;
  uint8_t phase = 0;
  Site site{};
  Waiters waiters;
  Halves values[2][32] = {};
  uintptr_t addresses[32] = {};
  char order[2] = {};
};
struct Warp {
  uint32_t lanes = 0, exited = 0;  // masks
  WarpOperation whole;
  std::vector<std::unique_ptr<WarpOperation>> partial;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
struct SharedVariable {
  const void* key;
  std::byte* at;
};
constexpr size_t kStaticSharedBytes = 48 << 10, kMostSharedBytes = 227 << 10;

struct Block {
  const Grid* grid = nullptr;
  uint32_t ordinal = 0;  // among all blocks of the run
  uint32_t threads = 0, live = 0;
  std::unique_ptr<Fiber[]> fibers;
  Stacks stacks;
  Barrier barriers[kBarriers];
  std::vector<Warp> warps;
  std::unique_ptr<std::byte, Free> shared;
  size_t staticBytes = 0;
  std::vector<SharedVariable> variables;
  std::unique_ptr<BlockMemory> memory;  // Options::weak only, as stores
  std::unique_ptr<ThreadStores[]> stores;
  char finished = 0;  // order of the block's end, for the thread sanitizer

  ThreadStores& storesOf(const Fiber& fiber) { return stores[fiber.linear]; }
};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x1234567) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ * 0x2545f4914f6cdd1du >> 16;
  }
  uint64_t below(uint64_t bound) { return next() % bound; }

 private:
  uint64_t state_;
};

// Fibers that can run, in turn.
class RunQueue {
 public:
  void reserve(size_t fibers);
  size_t size() const { return count_; }
  void push(Fiber& fiber);
  Fiber& operator[](size_t i) const { return *places_[(head_ + i) & (places_.size() - 1)]; }
  Fiber& pop();
  void bringToFront(size_t i);

 private:
  std::vector<Fiber*> places_;  // a power of two
  size_t head_ = 0, count_ = 0;
};

struct PendingBlock {
  const Grid* grid;
  uint32_t index;
};

// One run() on one OS thread.
struct Executor {
  Executor(World world, OnTrap onTrap, const std::atomic<bool>* cancelled);

  const Options options;
  const World world;
  const OnTrap onTrap;
  const std::atomic<bool>* const cancelled;
  Random random;
  bool randomOrder;
  Context root;
  RunQueue ready;
  std::deque<PendingBlock> pending;
  std::vector<std::unique_ptr<Block>> blocks;  // resident
  std::vector<Block*> finished;                // of them; the root retires them
  std::map<const Grid*, uint64_t> unfinished;  // blocks not retired yet
  std::vector<const Grid*> finishedGrids;      // whose last block has been retired
  uint32_t blocksStarted = 0;
  uint64_t live = 0;  // threads
  Block* starved = nullptr;
  RunResult result;

  // Polls in vain of all threads while Hot::changes stayed vainSince, and when they were last looked at.
  uint64_t vain = 0, vainChecked = 0, vainSince = ~uint64_t{0};
  uint64_t idleSinceNs = 0;
  uint64_t skipNs = 0;  // of the next jump in time
};
extern constinit thread_local Executor* executor;

inline Fiber& self() { return *static_cast<Fiber*>(hot.thread); }

// ---- dispatch (scheduler.cpp); on fibers ----
void makeReady(Fiber& fiber);
void wake(Waiters& waiters);
void yield();
void wait(FiberState state);  // until somebody makes this fiber ready
void leaveToRoot(Leaving leaving);
[[noreturn]] void exitThread();
uint64_t nextPreemption();
// The root's: runs fibers until one leaves to the root.
void enterFibers();

// ---- waiting (idle.cpp) ----
bool polledInVain(const void* address, uint64_t value);  // as polled(), but does not let others run
void notedVain(Fiber& fiber, uint64_t polls);
void nobodyCanRun();  // on the root: ends the run, or waits a little for what others hold
void nap();
uint64_t monotonicNs();
bool skipTime();

// ---- blocks (blocks.cpp); on the root ----
bool mayStart(const PendingBlock& block);
void startBlocks();
void retireFinishedBlocks();
void abandonBlocks();

// ---- parts that exits touch ----
void completeBarriersAfterExit(Block& block);
void checkWarpsAfterExit(Fiber& fiber);
void completeBarrier(Barrier& barrier);

// ---- traps (trap.cpp) ----
// Thrown by traps that do not end the process, and caught where the fiber or the run began. The other fibers
// are left where they are: nothing of theirs is destroyed.
struct RunEnded {};
[[noreturn]] __attribute__((format(printf, 2, 3))) void trap(TrapKind kind, const char* format, ...);
// Ends the run (or the process) with a text that is complete.
[[noreturn]] void endRun(TrapKind kind, std::string text);
std::string where(const Thread& thread);
std::string deadlockReport();               // report.cpp
std::string describe(const void* address);  // the allocation it lies in; memory.cpp

}  // namespace peal::cudasim

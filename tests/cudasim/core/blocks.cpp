// Blocks: when they may start, what they own, how they end. On the root context, but for shared memory.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "tests/cudasim/core/sanitizers.h"
#include "tests/cudasim/core/scheduler.h"

namespace peal::cudasim {
namespace {

// Resident blocks by device, of all runs of this process.
struct Residency {
  std::mutex mutex;  // guards `blocks`
  std::map<int, int64_t> blocks;
};
Residency& residency() {
  static Residency* const instance = new Residency;  // outlives streams that outlive static objects
  return *instance;
}

bool becomeResident(int device) {
  const std::lock_guard lock(residency().mutex);
  int64_t& blocks = residency().blocks[device];
  if (blocks >= executor->options.residentBlocks) {
    return false;
  }
  ++blocks;
  return true;
}
void leaveResidency(int device) {
  const std::lock_guard lock(residency().mutex);
  --residency().blocks[device];
}

uint64_t volume(const dim3& size) { return uint64_t{size.x} * size.y * size.z; }

void fiberEntry() {
  arrived();
  try {
    self().grid->body();
    exitThread();
  } catch (const RunEnded&) {  // by a trap of this thread; the result says why
  }
  leaveToRoot(Leaving::ForGood);
}

uint3 position(uint32_t linear, const dim3& size) {
  return {linear % size.x, linear / size.x % size.y, linear / (size.x * size.y)};
}

void prepareFiber(Block& block, uint32_t linear, const uint3& blockIndex) {
  Fiber& fiber = block.fibers[linear];
  const Grid& grid = *block.grid;
  fiber.threadIndex = position(linear, grid.block);
  fiber.blockIndex = blockIndex;
  fiber.linear = linear;
  fiber.lane = linear % 32;
  fiber.warp = linear / 32;
  fiber.blockThreads = block.threads;
  fiber.gridBlocks = static_cast<uint32_t>(volume(grid.grid));
  fiber.device = static_cast<uint32_t>(grid.device);
  fiber.grid = &grid;
  fiber.block = &block;
  prepare(fiber.context, block.stacks.stack(linear), block.stacks.stackBytes(), fiberEntry);
  block.warps[fiber.warp].lanes |= uint32_t{1} << fiber.lane;
  block.warps[fiber.warp].whole.mask = block.warps[fiber.warp].lanes;
}

void startBlock(const PendingBlock& pending) {
  Executor& e = *executor;
  auto owned = std::make_unique<Block>();
  Block& block = *owned;
  const Grid& grid = *pending.grid;
  block.grid = &grid;
  block.ordinal = e.blocksStarted++;
  block.threads = block.live = static_cast<uint32_t>(volume(grid.block));
  block.stacks = Stacks(block.threads, (static_cast<size_t>(e.options.stackBytes) + 4095) / 4096 * 4096);
  e.blocks.push_back(std::move(owned));
  if (block.stacks.empty()) {
    trap(TrapKind::Launch, "no memory for the stacks of %u threads", block.threads);
  }
  block.fibers = std::make_unique<Fiber[]>(block.threads);
  block.warps.resize((block.threads + 31) / 32);
  const size_t sharedBytes = kStaticSharedBytes + grid.sharedBytes;
  block.shared.reset(static_cast<std::byte*>(std::aligned_alloc(128, (sharedBytes + 127) / 128 * 128)));
  std::fill_n(block.shared.get() + kStaticSharedBytes, grid.sharedBytes, std::byte{0xa5});
  poison(block.shared.get(), kStaticSharedBytes);
  block.variables.reserve(64);
  if (hot.weak) {
    block.memory = std::make_unique<BlockMemory>();
    block.stores = std::make_unique<ThreadStores[]>(block.threads);
  }
  e.live += block.threads;
  e.ready.reserve(e.live);
  e.finished.reserve(e.blocks.size());
  const uint3 blockIndex = position(pending.index, grid.grid);
  for (uint32_t linear = 0; linear < block.threads; ++linear) {
    prepareFiber(block, linear, blockIndex);
    e.ready.push(block.fibers[linear]);
  }
}

// Resident no more; its threads never run again.
void retire(Block& block) {
  orderAcquire(&block.finished);
  for (uint32_t linear = 0; block.fibers != nullptr && linear < block.threads; ++linear) {
    destroy(block.fibers[linear].context);
  }
  unpoison(block.shared.get(), kStaticSharedBytes);
  leaveResidency(block.grid->device);
}

}  // namespace

// Blocks of a device start in order: one that may not start keeps back those behind it.
void startBlocks() {
  Executor& e = *executor;
  std::vector<int> full;
  for (auto next = e.pending.begin(); next != e.pending.end();) {
    const int device = next->grid->device;
    if (std::find(full.begin(), full.end(), device) == full.end() && becomeResident(device)) {
      const PendingBlock block = *next;
      next = e.pending.erase(next);
      startBlock(block);
    } else {
      full.push_back(device);
      ++next;
    }
  }
}

bool mayStart(const PendingBlock& block) {
  const std::lock_guard lock(residency().mutex);
  return residency().blocks[block.grid->device] < executor->options.residentBlocks;
}

void retireFinishedBlocks() {
  Executor& e = *executor;
  for (Block* block : e.finished) {
    retire(*block);
    if (--e.unfinished[block->grid] == 0) {
      e.finishedGrids.push_back(block->grid);
    }
    if (e.starved == block) {
      e.starved = nullptr;
    }
    std::erase_if(e.blocks, [block](const std::unique_ptr<Block>& owned) { return owned.get() == block; });
  }
  e.finished.clear();
}

void abandonBlocks() {
  retireFinishedBlocks();
  for (const std::unique_ptr<Block>& block : executor->blocks) {
    retire(*block);
  }
  executor->blocks.clear();
}

void* sharedVariable(const void* key, size_t bytes, size_t alignment) {
  Block& block = *self().block;
  for (const SharedVariable& variable : block.variables) {
    if (variable.key == key) {
      return variable.at;
    }
  }
  const size_t offset = (block.staticBytes + alignment - 1) / alignment * alignment;
  if (offset + bytes > kStaticSharedBytes) {
    trap(TrapKind::SharedMemory, "static shared variables of %zu bytes in all: a block has at most %zu",
         offset + bytes, kStaticSharedBytes);
  }
  std::byte* const at = block.shared.get() + offset;
  block.staticBytes = offset + bytes;
#ifdef CUDASIM_ASAN
  block.staticBytes += 32;  // stays poisoned
#endif
  unpoison(at, bytes);
  for (size_t i = 0; i < bytes; ++i) {
    static_cast<volatile std::byte*>(at)[i] = std::byte{0xa5};  // no call that a sanitizer would see
  }
  block.variables.push_back({key, at});
  return at;
}

void* dynamicShared() { return self().block->shared.get() + kStaticSharedBytes; }
std::byte* sharedBase() { return self().block->shared.get(); }
bool isOnStack(const void* address) {
  const Context& context = self().context;
  return static_cast<size_t>(static_cast<const std::byte*>(address) - context.stack) < context.stackBytes;
}
size_t sharedBytes() { return kStaticSharedBytes + self().grid->sharedBytes; }

}  // namespace peal::cudasim

// Who waits for what, when nobody goes on.
#include <cstdio>
#include <map>
#include <string>

#include "tests/cudasim/core/scheduler.h"

namespace peal::cudasim {
namespace {

constexpr int kMostBlocks = 40, kMostPollers = 3;  // that are named: of each block, the first that poll

std::string text(const char* format, auto... values) {
  char line[512];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

std::string nameOf(const Grid& grid) { return grid.name.empty() ? "" : " of " + grid.name; }

std::string pollsOf(const Fiber& fiber) {
  std::string line;
  for (size_t i = 0; i < fiber.polls; ++i) {
    const Poll& poll = fiber.poll[i];
    line += text("%s %#llx", i == 0 ? "" : ", and", static_cast<unsigned long long>(poll.value)) + " at " +
            describe(poll.address);
  }
  return line;
}

// Threads at the same barrier, or in an operation of the same warp, in one phrase.
std::string waitersOf(const Block& block) {
  std::map<int, uint32_t> atBarrier;
  uint32_t inWarp = 0, exited = 0;
  for (uint32_t i = 0; i < block.threads; ++i) {
    const Fiber& fiber = block.fibers[i];
    exited += fiber.state == FiberState::Exited ? 1 : 0;
    inWarp += fiber.state == FiberState::InWarp ? 1 : 0;
    if (fiber.state == FiberState::AtBarrier) {
      ++atBarrier[fiber.barrier];
    }
  }
  std::string line;
  for (const auto& [id, count] : atBarrier) {
    const Barrier& barrier = block.barriers[id];
    line += text(", %u threads wait at barrier %d (%s:%u) of %u", count, id, barrier.site.file,
                 barrier.site.line, barrier.threads != 0 ? barrier.threads : block.live);
  }
  if (inWarp != 0) {
    line += text(", %u threads wait for lanes of their warp", inWarp);
  }
  if (exited != 0) {
    line += text(", %u have exited", exited);
  }
  return line;
}

std::string pendingBlocks() {
  std::map<int, std::pair<size_t, uint32_t>> devices;  // how many, and the first of them
  for (const PendingBlock& block : executor->pending) {
    const auto [entry, first] = devices.try_emplace(block.grid->device, 0, block.index);
    ++entry->second.first;
  }
  std::string lines;
  for (const auto& [device, blocks] : devices) {
    lines += text(
        "\n  device %d: %zu blocks have not started, block %u first, because it runs at most %lld at once "
        "(CUDASIM_RESIDENT)",
        device, blocks.first, blocks.second, static_cast<long long>(executor->options.residentBlocks));
  }
  return lines;
}

std::string reportOf(const Block& block) {
  uint32_t polling = 0;
  std::string pollers;
  for (uint32_t i = 0; i < block.threads; ++i) {
    const Fiber& fiber = block.fibers[i];
    if (fiber.state == FiberState::Ready && ++polling <= kMostPollers) {
      pollers += text("\n    thread %u ", i) + (fiber.polls != 0 ? "polls" + pollsOf(fiber) : "runs");
    }
  }
  return text("\n  device %d, block %u", block.grid->device, block.fibers[0].blockIndex.x) +
         nameOf(*block.grid) + text(": %u of %u threads can run", polling, block.threads) + waitersOf(block) +
         pollers;
}

}  // namespace

std::string deadlockReport() {
  std::string lines = pendingBlocks();
  int left = kMostBlocks;
  for (const std::unique_ptr<Block>& block : executor->blocks) {
    if (block->live != 0 && left-- > 0) {
      lines += reportOf(*block);
    }
  }
  return left < 0 ? lines + text("\n  and %d blocks more", -left) : lines;
}

}  // namespace peal::cudasim

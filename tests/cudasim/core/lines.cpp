// LL128: a warp's access of whole 128-byte lines.
//
// One run's threads see each line's store as one: the lane that comes last does it, and nobody runs
// meanwhile. Between processes no store of 128 bytes is one; there the last 8 bytes of a line are stored last
// and loaded first. That is where LL128 has its flag: a reader that finds the new flag has the new line, as
// on NVLink.
#include "tests/cudasim/core/warp.h"

namespace peal::cudasim {
namespace {

constexpr size_t kLineBytes = 128, kPartBytes = 16, kParts = kLineBytes / kPartBytes;

using Word = Aliased<uint64_t>::Type;
Word* wordAt(uintptr_t address) { return reinterpret_cast<Word*>(address); }

std::byte* checkedPart(const void* address) {
  const Fiber& fiber = self();
  if (fiber.block->warps[fiber.warp].lanes != kWholeWarp) {
    trap(TrapKind::Warp, "an LL128 access by a warp of fewer than 32 lanes");
  }
  return translate<kPartBytes>(address, Use::Strong);
}

// Eight neighbouring lanes: one aligned line, in order.
void checkLines(const WarpOperation& operation) {
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uintptr_t line = operation.addresses[lane / kParts * kParts];
    if (line % kLineBytes != 0 || operation.addresses[lane] != line + lane % kParts * kPartBytes) {
      trap(
          TrapKind::Misaligned,
          "an LL128 access by lanes that are not at one line of 128 bytes: lane %u at %#lx, lane %zu at %#lx",
          lane, operation.addresses[lane] | kTag, lane / kParts * kParts, line | kTag);
    }
  }
}

void settle(const WarpOperation& operation) {
  for (uint32_t lane = 0; hot.weak && lane < 32; ++lane) {
    modelSettle(reinterpret_cast<const std::byte*>(operation.addresses[lane]));
  }
}

void loadLines(WarpOperation& operation, Halves* values) {
  checkLines(operation);
  settle(operation);
  for (uint32_t first = 0; first < 32; first += kParts) {
    const uint32_t last = first + kParts - 1;
    values[last].second = __atomic_load_n(wordAt(operation.addresses[last] + 8), __ATOMIC_ACQUIRE);
    values[last].first = __atomic_load_n(wordAt(operation.addresses[last]), __ATOMIC_RELAXED);
    for (uint32_t lane = first; lane < last; ++lane) {
      values[lane].first = __atomic_load_n(wordAt(operation.addresses[lane]), __ATOMIC_RELAXED);
      values[lane].second = __atomic_load_n(wordAt(operation.addresses[lane] + 8), __ATOMIC_RELAXED);
    }
  }
}

void storeLines(WarpOperation& operation, const Halves* values) {
  checkLines(operation);
  settle(operation);
  for (uint32_t first = 0; first < 32; first += kParts) {
    const uint32_t last = first + kParts - 1;
    for (uint32_t lane = first; lane < last; ++lane) {
      __atomic_store_n(wordAt(operation.addresses[lane]), values[lane].first, __ATOMIC_RELAXED);
      __atomic_store_n(wordAt(operation.addresses[lane] + 8), values[lane].second, __ATOMIC_RELAXED);
    }
    __atomic_store_n(wordAt(operation.addresses[last]), values[last].first, __ATOMIC_RELAXED);
    __atomic_store_n(wordAt(operation.addresses[last] + 8), values[last].second, __ATOMIC_RELEASE);
  }
  countChange();
}

}  // namespace

Halves lineLoad(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(checkedPart(address));
  const WarpValues all = collective(
      kWholeWarp, WarpKind::LineLoad, kNoSite,
      [at](WarpOperation& operation, Halves*) { operation.addresses[self().lane] = at; }, loadLines);
  const Halves value = all.values[self().lane];
  // The lanes have let others run while they met.
  polledInVain(address, value.first ^ (value.second << 1 | value.second >> 63));
  return value;
}

void lineStore(void* address, Halves value) {
  step();
  const auto at = reinterpret_cast<uintptr_t>(checkedPart(address));
  collective(
      kWholeWarp, WarpKind::LineStore, kNoSite,
      [at, value](WarpOperation& operation, Halves* values) {
        operation.addresses[self().lane] = at;
        values[self().lane] = value;
      },
      storeLines);
}

}  // namespace peal::cudasim

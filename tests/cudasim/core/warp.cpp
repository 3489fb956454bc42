#include "tests/cudasim/core/warp.h"

namespace peal::cudasim {
namespace {

const char* kindName(WarpKind kind) {
  switch (kind) {
    case WarpKind::Sync:
      return "syncWarp";
    case WarpKind::Exchange:
      return "a shuffle";
    case WarpKind::Ballot:
      return "a ballot";
    case WarpKind::LineLoad:
      return "an LL128 load";
    case WarpKind::LineStore:
      return "an LL128 store";
  }
  return "?";
}

Warp& warpOf(const Fiber& fiber) { return fiber.block->warps[fiber.warp]; }

WarpOperation& operationOf(Warp& warp, uint32_t mask) {
  if (mask == warp.lanes) {
    return warp.whole;
  }
  for (const std::unique_ptr<WarpOperation>& operation : warp.partial) {
    if (operation->mask == mask) {
      return *operation;
    }
  }
  warp.partial.push_back(std::make_unique<WarpOperation>());
  warp.partial.back()->mask = mask;
  return *warp.partial.back();
}

constexpr auto kNothing = [](WarpOperation&, Halves*) {};

}  // namespace

WarpOperation& joinWarp(uint32_t mask, WarpKind kind, const Site& site) {
  Fiber& fiber = self();
  Warp& warp = warpOf(fiber);
  mask &= warp.lanes;
  if ((mask >> fiber.lane & 1) == 0) {
    trap(TrapKind::Warp, "lane %u calls %s for the lanes %08x, which are not its own", fiber.lane,
         kindName(kind), mask);
  }
  if ((mask & warp.exited) != 0) {
    trap(TrapKind::Warp, "lane %u calls %s for the lanes %08x, of which %08x have exited", fiber.lane,
         kindName(kind), mask, mask & warp.exited);
  }
  WarpOperation& operation = operationOf(warp, mask);
  if (operation.arrived == 0) {
    operation.kind = kind;
    operation.site = site;
  } else if (operation.kind != kind) {
    trap(TrapKind::Warp,
         "lanes of one warp meet in different operations: %08x are in %s, lane %u comes to %s",
         operation.arrived, kindName(operation.kind), fiber.lane, kindName(kind));
  }
  return operation;
}

void completeWarp(WarpOperation& operation) {
  operation.arrived = 0;
  operation.phase ^= 1;
  wake(operation.waiters);
}

void checkWarpsAfterExit(Fiber& fiber) {
  Warp& warp = warpOf(fiber);
  const uint32_t lane = uint32_t{1} << fiber.lane;
  warp.exited |= lane;
  const auto check = [&](const WarpOperation& operation) {
    if (operation.arrived != 0 && (operation.mask & lane) != 0) {
      trap(TrapKind::Warp, "lane %u exits while the lanes %08x wait for it in %s", fiber.lane,
           operation.arrived, kindName(operation.kind));
    }
  };
  check(warp.whole);
  for (const std::unique_ptr<WarpOperation>& operation : warp.partial) {
    check(*operation);
  }
}

void warpSync(uint32_t mask, Site site) {
  if (hot.weak) {
    self().block->memory->toBlock(self().block->storesOf(self()));
  }
  collective(mask, WarpKind::Sync, site, kNothing, kNothing);
}

uint64_t warpExchange(uint32_t mask, uint64_t value, uint32_t srcLane) {
  const WarpValues all = collective(
      mask, WarpKind::Exchange, kNoSite,
      [value](WarpOperation&, Halves* values) {
        values[self().lane] = {value, 0};
      },
      kNothing);
  if (srcLane >= 32 || (all.mask >> srcLane & 1) == 0) {
    trap(TrapKind::Warp, "lane %u reads lane %u in a shuffle of the lanes %08x", self().lane, srcLane,
         all.mask);
  }
  return all.values[srcLane].first;
}

uint32_t warpBallot(uint32_t mask, bool predicate) {
  const WarpValues all = collective(
      mask, WarpKind::Ballot, kNoSite,
      [predicate](WarpOperation&, Halves* values) {
        values[self().lane] = {predicate ? 1u : 0u, 0};
      },
      kNothing);
  uint32_t votes = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((all.mask >> lane & 1) != 0 && all.values[lane].first != 0) {
      votes |= uint32_t{1} << lane;
    }
  }
  return votes;
}

}  // namespace peal::cudasim

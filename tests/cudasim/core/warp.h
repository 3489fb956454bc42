// Operations that lanes of a warp do together; internal to core/. The lane that comes last performs them.
#pragma once
#include "tests/cudasim/core/sanitizers.h"
#include "tests/cudasim/core/scheduler.h"

namespace peal::cudasim {

constexpr Site kNoSite{"", 0};

// The operation that this lane comes to; traps if the mask or the kind cannot be right.
WarpOperation& joinWarp(uint32_t mask, WarpKind kind, const Site& site);
void completeWarp(WarpOperation& operation);

// What lanes gave, or what was performed on it, in [lane].
struct WarpValues {
  const Halves* values;
  uint32_t mask;
};

// `deposit(operation, values)` for this lane; `perform(operation, values)` once, when all lanes are there.
template <class Deposit, class Perform>
WarpValues collective(uint32_t mask, WarpKind kind, const Site& site, Deposit deposit, Perform perform) {
  WarpOperation& operation = joinWarp(mask, kind, site);
  const uint8_t phase = operation.phase;
  Halves* const values = operation.values[phase];
  const bool ordersMemory = kind == WarpKind::Sync;
  deposit(operation, values);
  if (ordersMemory) {
    orderRelease(&operation.order[phase]);
  }
  operation.arrived |= uint32_t{1} << self().lane;
  if (operation.arrived == operation.mask) {
    perform(operation, values);
    completeWarp(operation);
  } else {
    operation.waiters.add(self());
    self().warpMask = operation.mask;
    wait(FiberState::InWarp);
  }
  if (ordersMemory) {
    orderAcquire(&operation.order[phase]);
  }
  return {values, operation.mask};
}

}  // namespace peal::cudasim

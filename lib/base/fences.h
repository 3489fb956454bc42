// Orders between threads, and processes, that loads and stores alone do not give: a store before a later load
// of another place. Two that each store and then look at what the other stored (Dekker) need that on both
// sides.
//
// Where one side is rare, it pays for both: the frequent side only keeps the compiler in order
// (fenceForSlowSide), the rare one fences everybody (fenceAll; Linux' membarrier). A fence of one's own waits
// until every line that was written has come from whoever has it; on the way of a short call that is most of
// it.
#pragma once
#include <atomic>

namespace peal {

// Keeps this thread's stores before its later loads, which nothing weaker does.
void fullFence();
// Keeps this thread's loads before its later loads and stores, atomic or not.
void loadFence();

// Registers this process, once, so that fenceAll() of any process reaches it: false where the system does not
// know that or forbids it.
bool registeredForFences();
// A full fence of this thread and of every running thread of every registered process.
void fenceAll();

// For the frequent side: `everybodyFences` says that the rare side calls fenceAll() and reaches this process.
inline void fenceForSlowSide(bool everybodyFences) {
  if (everybodyFences) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    fullFence();
  }
}

}  // namespace peal

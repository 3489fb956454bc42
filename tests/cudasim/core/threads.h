// What threads of a block do together, and time: what both front ends call, besides access.h. Called by
// threads of a running grid only.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tests/cudasim/core/state.h"

namespace peal::cudasim {

// A place in the source, for reports and to tell barriers apart: {__builtin_FILE(), __builtin_LINE()} as
// default argument. Lines of PTX are not `distinct`: nvcc may have made several of one in the source.
struct Site {
  const char* file;
  unsigned line;
  bool distinct = true;
};

// ---- barriers ----
enum class Reduction : uint8_t { None, Or, And, Count };
constexpr int kBarriers = 16;
// bar.sync, bar.red: barrier `id` of `threads` threads, 0: all of the block that have not exited. Returns the
// reduction of all threads' predicates.
uint32_t blockBarrier(int id, uint32_t threads, Reduction reduction, bool predicate, Site site);
// bar.arrive: counts as one of `threads` and goes on.
void arriveAtBarrier(int id, uint32_t threads, Site site);

// ---- warps: every lane of `mask` calls; lanes that the block does not have are left out ----
constexpr uint32_t kWholeWarp = ~uint32_t{0};
// Orders memory among the lanes; the other operations do not.
void warpSync(uint32_t mask, Site site);
// The value that lane `srcLane` gave.
uint64_t warpExchange(uint32_t mask, uint64_t value, uint32_t srcLane);
uint32_t warpBallot(uint32_t mask, bool predicate);

// ---- shared memory: static variables, then the launch's dynamic bytes; filled with garbage ----
// The variable of this block that `key` names, made at the first call. Keys: addresses of statics.
void* sharedVariable(const void* key, size_t bytes, size_t alignment);
void* dynamicShared();
// The block's shared memory; addresses of PTX's .shared space count from here.
std::byte* sharedBase();
size_t sharedBytes();  // static and dynamic
// Whether the address lies on the stack of the thread that runs: local memory.
bool isOnStack(const void* address);

// ---- time ----
// Real monotonic time, so that deadlines mean the same in all processes, plus what was skipped: a run that is
// World::Alone, all of whose threads wait and read the clock, jumps ahead instead of waiting.
uint64_t clockNs();
void pause(uint32_t ns);
[[noreturn]] void halt();

}  // namespace peal::cudasim

// Runs grids. Called by the simulated runtime's streams and by kernel tests; never from inside a kernel.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/cudasim/core/dim.h"

namespace peal::cudasim {

struct Grid {
  dim3 grid, block;
  size_t sharedBytes = 0;      // dynamic shared memory of each block
  std::function<void()> body;  // the kernel with its arguments; every thread calls it
  int device = 0;
  std::string name;  // of the kernel, for reports
};

// What ended a run early.
enum class TrapKind {
  None,
  Misaligned,    // address not a multiple of the access's size
  OutOfBounds,   // a device address outside every allocation, or across the end of one
  Freed,         // memory that was freed
  Closed,        // memory of another process after its handle was closed
  HostMemory,    // an address of the host that is not pinned
  Device,        // memory that this device may not address
  Scope,         // a strong access too narrow for who shares the memory
  NonCoherent,   // ld.global.nc of memory that others may write
  Barrier,       // threads that disagree about a barrier
  Warp,          // lanes that disagree about an operation of the warp
  SharedMemory,  // too much of it
  Stack,         // a thread's stack overflowed
  Launch,        // impossible sizes
  Halt,          // the kernel called halt()
  Deadlock,      // nobody can ever go on
  NoProgress,    // nobody went on for options().timeoutMs
  Cancelled,     // as asked for
};

struct RunResult {
  TrapKind kind = TrapKind::None;
  std::string text;       // what happened and where: a sentence; deadlocks: one line for each block more
  uint64_t trace = 0;     // hash of the order in which threads ran: equal for equal schedules
  uint64_t switches = 0;  // from thread to thread
  bool ok() const { return kind == TrapKind::None; }
};

// Alone: nobody but the threads of this run writes what they read (no other process, no other run, no host
// thread meanwhile). Then a deadlock is found at once and exactly, and time jumps while all threads wait for
// a deadline. Shared: somebody else may; waits give the processor away, and only timeoutMs ends them.
enum class World : uint8_t { Alone, Shared };

// What follows a trap: the process prints it and ends with status kTrapStatus, or run() returns it. What a
// kernel leaves behind then is undefined, as on a device after an error.
enum class OnTrap : uint8_t { EndProcess, Return };
constexpr int kTrapStatus = 97;

// Grids to run besides, once `finished` has finished while others still run. Called on the run's thread,
// outside any kernel.
using Successors = std::function<std::vector<Grid*>(const Grid& finished)>;

// Runs all blocks of all grids on the calling thread and returns when the last has finished. Blocks start in
// the order of `grids`; those of successors come behind. A run ends early, with TrapKind::Cancelled, once
// *cancelled is true.
RunResult run(std::span<Grid* const> grids, World world = World::Alone, OnTrap onTrap = OnTrap::EndProcess,
              const std::atomic<bool>* cancelled = nullptr, const Successors& successors = nullptr);

// Called with every trap of every run, before the process ends or run() returns; from any thread that runs
// grids. Returns the observer that was there before.
using TrapObserver = std::function<void(const RunResult&)>;
TrapObserver setTrapObserver(TrapObserver observer);

}  // namespace peal::cudasim

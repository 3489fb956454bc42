// The table of memory that CUDA knows: device allocations, pinned and registered host ranges, mappings of
// other processes' allocations. Owns the pages of all but registered ranges, and keeps core's registry of
// what kernels may address in step.
#pragma once
#include <cuda_runtime.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/cudasim/runtime/engine.h"

namespace peal::cudasim {

enum class RangeKind : uint8_t { Device, Pinned, Registered, Opened, Mapped };

struct Range {
  RangeKind kind = RangeKind::Device;
  uintptr_t base = 0;  // as the user addresses it
  size_t bytes = 0;
  size_t mappedBytes = 0;  // pages behind it; 0: not ours
  int device = 0;          // that it lies on; pinned: current when it was made
  unsigned flags = 0;
  uint64_t id = 0;  // of the allocation, in its process
  int fd = -1;      // of the memory file; Device only
  // Opened: which allocation of whom, by which device, how often.
  pid_t exporter = 0;
  int opener = 0;
  int opens = 0;
  uint64_t accessors = 0;  // Mapped: devices that cuMemSetAccess named

  bool isOnDevice() const {
    return kind == RangeKind::Device || kind == RangeKind::Opened || kind == RangeKind::Mapped;
  }
};

class MemoryTable {
 public:
  // nullptr: the machine has not so much.
  Range* allocate(Lock& lock, int device, size_t bytes);
  Range* allocatePinned(Lock& lock, int device, size_t bytes, unsigned flags);
  Range* addRegistered(Lock& lock, int device, void* data, size_t bytes, unsigned flags);
  // Maps a memory file of another process; it stays the caller's to close.
  Range* addOpened(Lock& lock, int fd, const Range& range);
  // A piece of cuMemMap, at its place in addresses that are reserved; the file stays the caller's.
  Range* addMapped(Lock& lock, int fd, const Range& range);
  void setAccessors(Lock& lock, Range& range, uint64_t devices);
  void remove(Lock& lock, Range* range);

  Range* startingAt(const void* address);
  Range* holding(const void* address);
  Range* overlapping(const void* address, size_t bytes);
  Range* opened(pid_t exporter, uint64_t id, int opener);
  size_t allocatedBytes(int device) const;
  // Devices may address: their own memory, and that of devices whose access they enabled.
  void applyPeerAccess(Lock& lock);

  // Lines for liveObjects().
  void describe(std::vector<std::string>& lines) const;
  void removeAll(Lock& lock);
  // In a forked child: kernels cannot address the parent's memory any more.
  void forgetAll() const;

 private:
  Range* insert(const Range& range);
  uint64_t devicesThatReach(const Range& range) const;

  std::map<uintptr_t, Range> ranges_;  // by base
  uint64_t nextId_ = 1;
};

}  // namespace peal::cudasim

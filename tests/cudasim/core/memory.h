// What simulated devices may address: tagged addresses, and the registry of allocations that every access of
// a kernel is checked against. Filled by the simulated runtime (cudaMalloc, cudaHostAlloc, IPC) and by
// DeviceBuffer; thread-safe. It owns no memory.
//
// A device address is the host's address with kTag set. No such address can be dereferenced by the host: it
// faults at once. Pinned host memory has one address for both, as with unified addressing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

namespace peal::cudasim {

constexpr uintptr_t kTag = uintptr_t{1} << 62;

inline bool isTagged(const void* address) { return (reinterpret_cast<uintptr_t>(address) & kTag) != 0; }
// The host's view of a device address; pinned host memory stays as it is.
template <class T>
T* toHost(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) & ~kTag);
}
// Device memory's address as kernels and the runtime's users see it.
template <class T>
T* toDevice(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) | kTag);
}

enum class MemoryKind : uint8_t { Device, PinnedHost };

struct Allocation {
  uintptr_t base = 0;  // as kernels address it: tagged for device memory
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::Device;
  int device = 0;                   // that it lies on; PinnedHost: unused
  uint64_t devices = ~uint64_t{0};  // bit d: device d may address it
  bool exported = false;            // its IPC handle was given away, or a peer device may write it
  bool opened = false;              // another process's, opened by its IPC handle
};

void registerAllocation(const Allocation& allocation);
// What becomes of the allocation that starts at `base`. Returns false if there is none.
bool setExported(uintptr_t base);
bool setDevices(uintptr_t base, uint64_t devices);

// How an allocation ended; later accesses are answered with it until the addresses are registered anew.
enum class End : uint8_t { Freed, Closed, Unregistered };
bool endAllocation(uintptr_t base, End end);

// The allocation that holds this address (as kernels address it).
std::optional<Allocation> findAllocation(const void* address);

}  // namespace peal::cudasim

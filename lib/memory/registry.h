// The registry of this process's memory that peers may read in place: memfd regions made by pealMemAlloc,
// which they may also write where an operation lends it, and ranges registered by the user (read with
// process_vm_readv where the system allows it).
//
// Owns the memfds and mappings of pealMemAlloc. Thread-safe. Never knows who reads. Used by comm and by
// transports that map memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lib/base/result.h"

namespace peal {

// What a transport needs to let a peer read an address range.
struct Region {
  uint64_t id = 0;  // never used twice in a process
  const std::byte* base = nullptr;
  size_t bytes = 0;
  int fd = -1;  // the memfd; -1: a registered range without one
};

// pealMemAlloc and pealMemFree. bytes > 0; rounded up to whole pages.
Result<void*> allocateShared(size_t bytes);
Result<void> freeShared(void* pointer);

// pealCommRegister and pealCommDeregister. Ranges may overlap; each registration has its own id.
Result<uint64_t> registerRange(const void* base, size_t bytes);
Result<void> deregisterRange(uint64_t id);

// The region that holds all of [pointer, pointer + bytes); a memfd region is preferred. Cheap (a cached
// last hit), for the data path.
std::optional<Region> findRegion(const void* pointer, size_t bytes);

// Changes whenever a region ends: a transport compares it to drop what it cached about regions.
uint64_t registryGeneration();

// Whether that region still exists.
bool regionExists(uint64_t id);

}  // namespace peal

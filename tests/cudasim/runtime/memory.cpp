#include "tests/cudasim/runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/cudasim/core/memory.h"
#include "tests/cudasim/runtime/state.h"

namespace peal::cudasim {
namespace {

constexpr size_t kPage = 4096;
constexpr int kGarbage = 0xa5;  // fresh memory is not zero

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Pages of the file (private ones for fd -1) and a guard page behind them; nullptr: no memory.
void* mapPages(int fd, size_t mappedBytes) {
  void* base =
      mmap(nullptr, mappedBytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return nullptr;
  }
  const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  if (mmap(base, mappedBytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED, fd, 0) == MAP_FAILED) {
    munmap(base, mappedBytes + kPage);
    return nullptr;
  }
  return base;
}

// Gives the pages back and keeps the addresses: nothing else ever lies there, so that later accesses are
// found.
void retirePages(void* base, size_t mappedBytes) {
  mmap(base, mappedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void* pagesOf(const Range& range) { return toHost(reinterpret_cast<void*>(range.base)); }

const char* kindName(RangeKind kind) {
  switch (kind) {
    case RangeKind::Device:
      return "cudaMalloc";
    case RangeKind::Pinned:
      return "cudaHostAlloc";
    case RangeKind::Registered:
      return "cudaHostRegister";
    case RangeKind::Opened:
      return "cudaIpcOpenMemHandle";
    case RangeKind::Mapped:
      return "cuMemMap";
  }
  return "?";
}

}  // namespace

Range* MemoryTable::insert(const Range& range) {
  Range& kept = ranges_[range.base] = range;
  Allocation allocation;
  allocation.base = range.base;
  allocation.bytes = range.bytes;
  allocation.kind = range.isOnDevice() ? MemoryKind::Device : MemoryKind::PinnedHost;
  allocation.device = range.device;
  allocation.devices = devicesThatReach(range);
  allocation.opened = range.kind == RangeKind::Opened;
  registerAllocation(allocation);
  return &kept;
}

Range* MemoryTable::allocate(Lock&, int device, size_t bytes) {
  if (bytes > runtime().machine.memoryBytes - allocatedBytes(device)) {
    return nullptr;
  }
  Range range;
  range.mappedBytes = pages(bytes);
  range.fd = memfd_create("cudasim", MFD_CLOEXEC);
  if (range.fd < 0) {
    return nullptr;
  }
  void* data = ftruncate(range.fd, static_cast<off_t>(range.mappedBytes)) == 0
                   ? mapPages(range.fd, range.mappedBytes)
                   : nullptr;
  if (data == nullptr) {
    close(range.fd);
    return nullptr;
  }
  std::memset(data, kGarbage, range.mappedBytes);
  range.base = reinterpret_cast<uintptr_t>(toDevice(data));
  range.bytes = bytes;
  range.device = device;
  range.id = nextId_++;
  return insert(range);
}

Range* MemoryTable::allocatePinned(Lock&, int device, size_t bytes, unsigned flags) {
  Range range;
  range.kind = RangeKind::Pinned;
  range.mappedBytes = pages(bytes);
  void* data = mapPages(-1, range.mappedBytes);
  if (data == nullptr) {
    return nullptr;
  }
  std::memset(data, kGarbage, range.mappedBytes);
  range.base = reinterpret_cast<uintptr_t>(data);
  range.bytes = bytes;
  range.device = device;
  range.flags = flags;
  return insert(range);
}

Range* MemoryTable::addRegistered(Lock&, int device, void* data, size_t bytes, unsigned flags) {
  Range range;
  range.kind = RangeKind::Registered;
  range.base = reinterpret_cast<uintptr_t>(data);
  range.bytes = bytes;
  range.device = device;
  range.flags = flags;
  return insert(range);
}

Range* MemoryTable::addOpened(Lock&, int fd, const Range& opened) {
  Range range = opened;
  void* data = mapPages(fd, range.mappedBytes);
  if (data == nullptr) {
    return nullptr;
  }
  range.kind = RangeKind::Opened;
  range.base = reinterpret_cast<uintptr_t>(toDevice(data));
  range.fd = -1;
  range.opens = 1;
  return insert(range);
}

Range* MemoryTable::addMapped(Lock&, int fd, const Range& mapped) {
  void* const at = pagesOf(mapped);
  if (mmap(at, mapped.mappedBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    return nullptr;
  }
  return insert(mapped);
}

void MemoryTable::setAccessors(Lock&, Range& range, uint64_t devices) {
  range.accessors = devices;
  setDevices(range.base, devices);
  if (devices != uint64_t{1} << range.device) {
    setExported(range.base);
  }
}

void MemoryTable::remove(Lock&, Range* range) {
  const bool opened = range->kind == RangeKind::Opened;
  endAllocation(range->base, opened                                 ? End::Closed
                             : range->kind == RangeKind::Registered ? End::Unregistered
                                                                    : End::Freed);
  if (range->fd >= 0) {
    // The memory is gone for those who mapped it, too: their accesses raise SIGBUS.
    if (ftruncate(range->fd, 0) != 0) {
      std::abort();
    }
    close(range->fd);
  }
  if (range->mappedBytes > 0) {
    retirePages(pagesOf(*range), range->mappedBytes);
  }
  ranges_.erase(range->base);
}

Range* MemoryTable::startingAt(const void* address) {
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(address));
  return found == ranges_.end() ? nullptr : &found->second;
}

Range* MemoryTable::holding(const void* address) { return overlapping(address, 1); }

Range* MemoryTable::overlapping(const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  auto after = ranges_.lower_bound(begin + bytes);
  if (after == ranges_.begin()) {
    return nullptr;
  }
  Range& range = std::prev(after)->second;
  return range.base + range.bytes > begin ? &range : nullptr;
}

Range* MemoryTable::opened(pid_t exporter, uint64_t id, int opener) {
  for (auto& [base, range] : ranges_) {
    if (range.kind == RangeKind::Opened && range.exporter == exporter && range.id == id &&
        range.opener == opener) {
      return &range;
    }
  }
  return nullptr;
}

size_t MemoryTable::allocatedBytes(int device) const {
  size_t bytes = 0;
  for (const auto& [base, range] : ranges_) {
    if (range.kind == RangeKind::Device && range.device == device) {
      bytes += range.mappedBytes;
    }
  }
  return bytes;
}

uint64_t MemoryTable::devicesThatReach(const Range& range) const {
  if (!range.isOnDevice()) {
    return ~uint64_t{0};
  }
  if (range.kind == RangeKind::Opened) {
    return uint64_t{1} << range.opener;
  }
  if (range.kind == RangeKind::Mapped) {  // peer access does not reach it
    return range.accessors;
  }
  uint64_t devices = uint64_t{1} << range.device;
  for (const auto& [device, peer] : runtime().peers) {
    if (peer == range.device) {
      devices |= uint64_t{1} << device;
    }
  }
  return devices;
}

void MemoryTable::applyPeerAccess(Lock&) {
  for (const auto& [base, range] : ranges_) {
    const uint64_t devices = devicesThatReach(range);
    setDevices(base, devices);
    if (range.kind == RangeKind::Device && devices != uint64_t{1} << range.device) {
      setExported(base);
    }
  }
}

void MemoryTable::describe(std::vector<std::string>& lines) const {
  for (const auto& [base, range] : ranges_) {
    lines.push_back(
        std::string(kindName(range.kind)) + ": " + std::to_string(range.bytes) + " bytes of device " +
        std::to_string(range.device) +
        (range.kind == RangeKind::Opened ? ", of process " + std::to_string(range.exporter) : ""));
  }
}

void MemoryTable::forgetAll() const {
  for (const auto& [base, range] : ranges_) {
    endAllocation(base, End::Unregistered);
  }
}

void MemoryTable::removeAll(Lock& lock) {
  while (!ranges_.empty()) {
    remove(lock, &ranges_.begin()->second);
  }
}

}  // namespace peal::cudasim

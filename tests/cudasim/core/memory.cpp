#include "tests/cudasim/core/memory.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>

#include "tests/cudasim/core/scheduler.h"

namespace peal::cudasim {

constinit std::atomic<uint64_t> rangesVersion{1};

namespace {

struct Record {
  Allocation allocation;
  std::optional<End> end;
};

// A lock of its own: a mutex of the system would, under the thread sanitizer, order the fibers that look
// memory up, and hide their races.
class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) {  // pairs with unlock()
    }
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_;
};

struct Registry {
  SpinLock lock;  // guards `records`
  std::map<uintptr_t, Record> records;
};
Registry& registry() {
  static Registry* const instance = new Registry;  // outlives streams that outlive static objects
  return *instance;
}

struct Locked {
  Locked() { registry().lock.lock(); }
  ~Locked() { registry().lock.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

// Caches of CachedRange compare it without a lock: whoever changes an allocation that a running kernel uses
// races with that kernel on a device, too.
void changed() { rangesVersion.fetch_add(1, std::memory_order_relaxed); }

// The record whose range holds the address; under the lock.
Record* recordOf(uintptr_t at) {
  std::map<uintptr_t, Record>& records = registry().records;
  auto next = records.upper_bound(at);
  if (next == records.begin()) {
    return nullptr;
  }
  Record& record = std::prev(next)->second;
  return at - record.allocation.base < record.allocation.bytes ? &record : nullptr;
}

template <class Change>
bool change(uintptr_t base, Change apply) {
  const Locked locked;
  const auto found = registry().records.find(base);
  if (found == registry().records.end() || found->second.end) {
    return false;
  }
  apply(found->second);
  changed();
  return true;
}

std::string hex(uintptr_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(value));
  return text;
}

std::string sentenceOf(const Allocation& allocation) {
  std::string text = "the " + std::to_string(allocation.bytes) + " bytes at " + hex(allocation.base);
  if (allocation.kind == MemoryKind::PinnedHost) {
    return text + " of pinned host memory";
  }
  text += " of device " + std::to_string(allocation.device);
  text += allocation.opened ? ", another process's" : allocation.exported ? ", shared with peers" : "";
  return text;
}

std::string describeAt(uintptr_t at, const Allocation& allocation) {
  return hex(at) + ", byte " + std::to_string(at - allocation.base) + " of " + sentenceOf(allocation);
}

const char* nameOf(Use use) {
  switch (use) {
    case Use::WeakLoad:
      return "load";
    case Use::WeakStore:
      return "store";
    case Use::NonCoherentLoad:
      return "non-coherent load";
    case Use::Strong:
    case Use::NarrowStrong:
      return "strong access";
  }
  return "?";
}

[[noreturn]] void trapEnded(uintptr_t at, const Record& record, const std::string& access) {
  switch (*record.end) {
    case End::Freed:
      trap(TrapKind::Freed, "%s after free: %s", access.c_str(), describeAt(at, record.allocation).c_str());
    case End::Closed:
      trap(TrapKind::Closed, "%s of another process's memory after its IPC handle was closed: %s",
           access.c_str(), describeAt(at, record.allocation).c_str());
    case End::Unregistered:
      trap(TrapKind::HostMemory, "%s of host memory that is not pinned any more: %s", access.c_str(),
           describeAt(at, record.allocation).c_str());
  }
  __builtin_unreachable();
}

[[noreturn]] void trapUnknown(uintptr_t at, const std::string& access) {
  if ((at & kTag) == 0) {
    trap(TrapKind::HostMemory, "%s touches pageable host memory, or no memory at all: %s", access.c_str(),
         hex(at).c_str());
  }
  std::string nearest;
  {
    const Locked locked;
    auto next = registry().records.upper_bound(at);
    if (next != registry().records.begin()) {
      nearest = ", behind " + sentenceOf(std::prev(next)->second.allocation);
    }
  }
  trap(TrapKind::OutOfBounds, "%s outside every allocation: %s%s", access.c_str(), hex(at).c_str(),
       nearest.c_str());
}

void trapIfRefused(uintptr_t at, const Allocation& allocation, Use use, const std::string& access) {
  const bool written = allocation.exported || allocation.opened;
  if (use == Use::NonCoherentLoad && written) {
    trap(TrapKind::NonCoherent, "ld.global.nc of memory that a peer may write: %s",
         describeAt(at, allocation).c_str());
  }
  if (use == Use::NarrowStrong && (written || allocation.kind == MemoryKind::PinnedHost)) {
    trap(TrapKind::Scope, "%s at a scope narrower than the system, of memory that others share: %s",
         access.c_str(), describeAt(at, allocation).c_str());
  }
  if ((allocation.devices >> hot.thread->device & 1) == 0) {
    trap(TrapKind::Device, "%s of memory that device %u may not address (no peer access): %s", access.c_str(),
         hot.thread->device, describeAt(at, allocation).c_str());
  }
}

// What this OS thread found last, for accesses that miss Hot::ranges: small allocations fall into one place
// there. Far quicker than the registry.
constexpr size_t kRecentRanges = 16;
struct Recent {
  CachedRange ranges[kRecentRanges];
  size_t next = 0;
};
constinit thread_local Recent recent;

CachedRange rangeOf(const Allocation& allocation, uint64_t version) {
  const bool written = allocation.exported || allocation.opened;
  CachedRange range;
  range.version = version;
  range.begin = allocation.base;
  range.bytes = allocation.bytes;
  range.devices = allocation.devices;
  range.refuses =
      (written ? static_cast<uint64_t>(Use::NonCoherentLoad) | static_cast<uint64_t>(Use::NarrowStrong) : 0) |
      (allocation.kind == MemoryKind::PinnedHost ? static_cast<uint64_t>(Use::NarrowStrong) : 0);
  return range;
}

}  // namespace

void registerAllocation(const Allocation& allocation) {
  const Locked locked;
  std::map<uintptr_t, Record>& records = registry().records;
  // What ended at these addresses is forgotten.
  auto first = records.upper_bound(allocation.base);
  if (first != records.begin()) {
    const Record& before = std::prev(first)->second;
    if (allocation.base - before.allocation.base < std::max<size_t>(before.allocation.bytes, 1)) {
      --first;
    }
  }
  while (first != records.end() && first->first < allocation.base + allocation.bytes) {
    first = records.erase(first);
  }
  records[allocation.base] = {allocation, std::nullopt};
  changed();
}

bool setExported(uintptr_t base) {
  return change(base, [](Record& record) { record.allocation.exported = true; });
}
bool setDevices(uintptr_t base, uint64_t devices) {
  return change(base, [devices](Record& record) { record.allocation.devices = devices; });
}
bool endAllocation(uintptr_t base, End end) {
  return change(base, [end](Record& record) { record.end = end; });
}

std::optional<Allocation> findAllocation(const void* address) {
  const Locked locked;
  const Record* record = recordOf(reinterpret_cast<uintptr_t>(address));
  return record != nullptr && !record->end ? std::optional(record->allocation) : std::nullopt;
}

std::string describe(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const std::optional<Allocation> allocation = findAllocation(address);
  return allocation ? describeAt(at, *allocation) : hex(at);
}

std::byte* findMemory(uintptr_t at, size_t bytes, Use use) {
  CachedRange& place = hot.ranges[(at >> kCachedRangeBits) % kCachedRanges];
  for (const CachedRange& range : recent.ranges) {
    if (allows(range, at, bytes, use)) {
      place = range;
      return reinterpret_cast<std::byte*>(at & ~kTag);
    }
  }
  if (hot.thread == nullptr) {
    trap(TrapKind::Launch, "a device function was called outside a kernel");
  }
  const std::string access = std::to_string(bytes) + "-byte " + nameOf(use);
  if (at % bytes != 0) {
    trap(TrapKind::Misaligned, "misaligned %s: %s", access.c_str(),
         describe(reinterpret_cast<const void*>(at)).c_str());
  }
  std::optional<Record> found;
  uint64_t version = 0;
  {
    const Locked locked;
    version = rangesVersion.load(std::memory_order_relaxed);
    if (const Record* record = recordOf(at)) {
      found = *record;
    }
  }
  if (!found) {
    trapUnknown(at, access);
  }
  const Allocation& allocation = found->allocation;
  if (found->end) {
    trapEnded(at, *found, access);
  }
  if (at - allocation.base + bytes > allocation.bytes) {
    trap(TrapKind::OutOfBounds, "%s across the end of an allocation: %s", access.c_str(),
         describeAt(at, allocation).c_str());
  }
  trapIfRefused(at, allocation, use, access);
  place = rangeOf(allocation, version);
  recent.ranges[recent.next++ % kRecentRanges] = place;
  return reinterpret_cast<std::byte*>(at & ~kTag);
}

}  // namespace peal::cudasim

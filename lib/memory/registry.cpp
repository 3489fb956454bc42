#include "lib/memory/registry.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "lib/memory/descriptor.h"

namespace peal {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

uintptr_t addressOf(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// Whether [base, base + bytes) holds all of [pointer, pointer + wanted), without overflow.
bool holds(uintptr_t base, size_t bytes, uintptr_t pointer, size_t wanted) {
  return pointer >= base && pointer - base <= bytes && wanted <= bytes - (pointer - base);
}

// A registered range, in a vector sorted by base. `reach` is the index of the entry up to and including
// this one whose end lies farthest: if any range that starts at or before an address holds it, that one
// does. So a lookup among overlapping ranges is one binary search.
struct Range {
  uint64_t id;
  uintptr_t base;
  size_t bytes;
  size_t reach;
  uintptr_t end() const { return base + bytes; }
};

struct Allocation {
  Region region;
  OwnedFd file;
};

struct Registry {
  std::shared_mutex mutex;  // guards the three below
  std::map<uintptr_t, Allocation> allocations;
  std::vector<Range> ranges;
  uint64_t nextId = 1;

  // Number of regions, so that a process without any pays no lock. Written under the mutex; a reader that
  // sees an old value acts as if it had come a moment earlier.
  std::atomic<size_t> count{0};
  // Written (release) under the mutex after a region ended; read (acquire) by findRegion's cache and by
  // transports before they use what they remember.
  std::atomic<uint64_t> generation{1};

  // After a change at that place: what lies before it reaches as far as it did.
  void reachFrom(size_t place) {
    for (size_t i = place; i < ranges.size(); ++i) {
      const size_t before = i == 0 ? 0 : ranges[i - 1].reach;
      ranges[i].reach = ranges[before].end() > ranges[i].end() ? before : i;
    }
  }
};

// Never destroyed: buffers may be freed by destructors that run after ours would.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

std::optional<Region> lookUp(const Registry& table, uintptr_t address, size_t bytes) {
  auto next = table.allocations.upper_bound(address);
  if (next != table.allocations.begin()) {
    const Region& region = std::prev(next)->second.region;
    if (holds(addressOf(region.base), region.bytes, address, bytes)) {
      return region;
    }
  }
  const auto after = std::upper_bound(table.ranges.begin(), table.ranges.end(), address,
                                      [](uintptr_t at, const Range& range) { return at < range.base; });
  if (after != table.ranges.begin()) {
    const Range& range = table.ranges[std::prev(after)->reach];
    if (holds(range.base, range.bytes, address, bytes)) {
      return Region{range.id, reinterpret_cast<const std::byte*>(range.base), range.bytes, -1};
    }
  }
  return std::nullopt;
}

}  // namespace

Result<void*> allocateShared(size_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX / 2) {
    return Error{pealInvalidArgument, fmt::format("cannot allocate {} bytes of shared memory", bytes)};
  }
  const size_t whole = wholePages(bytes);
  Result<OwnedFd> file = createMemoryFile("peal-memory", whole);
  if (!file) {
    return file.error();
  }
  void* base = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
  if (base == MAP_FAILED) {
    return systemError(fmt::format("mmap of {} bytes of shared memory", whole), errno);
  }
  if (whole >= kHugePageBytes) {
    madvise(base, whole, MADV_HUGEPAGE);  // a hint: the system may have huge pages switched off
  }
  Registry& table = registry();
  const std::unique_lock lock(table.mutex);
  Allocation allocation{{table.nextId++, static_cast<const std::byte*>(base), whole, -1}, std::move(*file)};
  allocation.region.fd = allocation.file.get();
  table.allocations.emplace(addressOf(base), std::move(allocation));
  table.count.fetch_add(1, std::memory_order_relaxed);
  return base;
}

Result<void> freeShared(void* pointer) {
  Registry& table = registry();
  const std::unique_lock lock(table.mutex);
  const auto found = table.allocations.find(addressOf(pointer));
  if (found == table.allocations.end()) {
    const std::optional<Region> inside = lookUp(table, addressOf(pointer), 1);
    return Error{pealInvalidArgument,
                 inside && inside->fd >= 0
                     ? fmt::format("{} lies inside the allocation at {}; free that address", pointer,
                                   static_cast<const void*>(inside->base))
                     : fmt::format("{} did not come from pealMemAlloc, or was freed before", pointer)};
  }
  const size_t bytes = found->second.region.bytes;
  // Gives the pages back now, whoever still maps the file: a peer that reads after this sees zeros.
  madvise(pointer, bytes, MADV_REMOVE);
  munmap(pointer, bytes);
  table.allocations.erase(found);
  table.count.fetch_sub(1, std::memory_order_relaxed);
  table.generation.fetch_add(1, std::memory_order_release);
  return {};
}

Result<uint64_t> registerRange(const void* base, size_t bytes) {
  if (base == nullptr || bytes == 0 || bytes > SIZE_MAX - addressOf(base)) {
    return Error{pealInvalidArgument, fmt::format("cannot register {} bytes at {}", bytes, base)};
  }
  Registry& table = registry();
  const std::unique_lock lock(table.mutex);
  const uint64_t id = table.nextId++;
  const auto after = std::upper_bound(table.ranges.begin(), table.ranges.end(), addressOf(base),
                                      [](uintptr_t at, const Range& range) { return at < range.base; });
  const auto placed = table.ranges.insert(after, {id, addressOf(base), bytes, 0});
  table.reachFrom(static_cast<size_t>(placed - table.ranges.begin()));
  table.count.fetch_add(1, std::memory_order_relaxed);
  return id;
}

Result<void> deregisterRange(uint64_t id) {
  Registry& table = registry();
  const std::unique_lock lock(table.mutex);
  const auto found = std::find_if(table.ranges.begin(), table.ranges.end(),
                                  [id](const Range& range) { return range.id == id; });
  if (found == table.ranges.end()) {
    return Error{pealInvalidArgument,
                 fmt::format("registration {} does not exist, or was given back before", id)};
  }
  const auto next = table.ranges.erase(found);
  table.reachFrom(static_cast<size_t>(next - table.ranges.begin()));
  table.count.fetch_sub(1, std::memory_order_relaxed);
  table.generation.fetch_add(1, std::memory_order_release);
  return {};
}

std::optional<Region> findRegion(const void* pointer, size_t bytes) {
  Registry& table = registry();
  if (table.count.load(std::memory_order_relaxed) == 0) {
    return std::nullopt;
  }
  // What an operation reads and what it writes may lie in different regions.
  struct LastHits {
    uint64_t generation = 0;
    std::array<Region, 2> regions;
    size_t older = 0;
  };
  thread_local LastHits last;
  const uintptr_t address = addressOf(pointer);
  // Pairs with the fetch_add of whoever ended a region: equal generations mean that the hit still lives.
  const uint64_t now = table.generation.load(std::memory_order_acquire);
  if (last.generation == now) {
    for (const Region& region : last.regions) {
      if (holds(addressOf(region.base), region.bytes, address, bytes)) {
        return region;
      }
    }
  }
  const std::shared_lock lock(table.mutex);
  const std::optional<Region> found = lookUp(table, address, bytes);
  // A registered range is not remembered: a memfd region made later would be the better answer.
  if (found && found->fd >= 0) {
    const uint64_t generation = table.generation.load(std::memory_order_relaxed);
    if (last.generation != generation) {
      last = {.generation = generation, .regions = {}, .older = 0};
    }
    last.regions[last.older] = *found;
    last.older = 1 - last.older;
  }
  return found;
}

uint64_t registryGeneration() { return registry().generation.load(std::memory_order_acquire); }

bool regionExists(uint64_t id) {
  Registry& table = registry();
  const std::shared_lock lock(table.mutex);
  return std::any_of(table.allocations.begin(), table.allocations.end(),
                     [id](const auto& entry) { return entry.second.region.id == id; }) ||
         std::any_of(table.ranges.begin(), table.ranges.end(),
                     [id](const Range& range) { return range.id == id; });
}

}  // namespace peal

// An arena: one stretch of memory that the engine allocates when it is sealed and keeps to its end. Its size
// is what the planner said. Owned by the part of the engine that uses it (weights, gradients, optimizer).
// Where it is, its Device says: on a GPU its addresses are for kernels and not for the host.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/result.h"
#include "lib/zero/device.h"
#include "peal/zero.h"

namespace peal::zero {

class Arena {
 public:
  Arena() = default;
  ~Arena() { release(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Call once. Starts as zeros. name: a literal. The error says which arena and how large.
  Result<void> allocate(const std::shared_ptr<Device>& device, const char* name, pealZeroArenaKind_t kind,
                        ArenaMemory memory, uint64_t bytes, uint64_t plannedBytes);

  // Never null after allocate, even with 0 bytes.
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  const pealZeroArena_t& description() const { return description_; }
  std::span<const std::byte> bytes() const { return {as<std::byte>(), description_.bytes}; }
  bool exists() const { return data_ != nullptr; }

 private:
  void release();

  std::shared_ptr<Device> device_;
  pealZeroArena_t description_{};
  ArenaMemory memory_ = ArenaMemory::Private;
  void* data_ = nullptr;
};

// For pealZeroGetMemory: the arenas that a part of the engine has.
using ArenaList = std::vector<pealZeroArena_t>;
inline void describe(const Arena& arena, ArenaList& list) {
  if (arena.exists()) {
    list.push_back(arena.description());
  }
}

}  // namespace peal::zero

#include "lib/zero/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace peal::zero {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

Result<void> Arena::allocate(const char* name, pealZeroArenaKind_t kind, ArenaMemory memory, uint64_t bytes,
                             uint64_t plannedBytes) {
  // A shard may be empty, but collectives want an address.
  const size_t size = std::max<uint64_t>(bytes, 1);
  void* data = nullptr;
  if (memory == ArenaMemory::Shared) {
    if (const pealResult_t code = pealMemAlloc(&data, size); code != pealSuccess) {
      return Error{code, fmt::format("allocating {} bytes for the {} failed: {}", bytes, name,
                                     pealGetLastError(nullptr))};
    }
  } else {
    data = ::operator new(size, kAlignment, std::nothrow);
    if (data == nullptr) {
      return Error{pealSystemError,
                   fmt::format("{} bytes for the {} are more than this process can have; use more ranks or a "
                               "higher stage (peal-plan says which)",
                               bytes, name)};
    }
    std::memset(data, 0, size);
  }
  description_ = {name, kind, bytes, plannedBytes};
  memory_ = memory;
  data_ = data;
  return {};
}

void Arena::release() {
  if (data_ == nullptr) {
    return;
  }
  if (memory_ == ArenaMemory::Shared) {
    // Cannot fail for what pealMemAlloc gave; a destructor has nobody to tell.
    (void)pealMemFree(data_);
  } else {
    ::operator delete(data_, kAlignment);
  }
  data_ = nullptr;
}

}  // namespace peal::zero

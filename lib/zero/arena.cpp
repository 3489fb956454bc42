#include "lib/zero/arena.h"

#include <fmt/format.h>

#include <algorithm>

namespace peal::zero {

Result<void> Arena::allocate(const std::shared_ptr<Device>& device, const char* name,
                             pealZeroArenaKind_t kind, ArenaMemory memory, uint64_t bytes,
                             uint64_t plannedBytes) {
  // A shard may be empty, but collectives want an address.
  const Result<void*> data = device->allocate(memory, std::max<uint64_t>(bytes, 1));
  if (!data) {
    return Error{data.error().code,
                 fmt::format("allocating {} bytes for the {} failed: {}", bytes, name, data.error().message)};
  }
  device_ = device;
  description_ = {name, kind, bytes, plannedBytes};
  memory_ = memory;
  data_ = *data;
  return {};
}

void Arena::release() {
  if (data_ != nullptr) {
    device_->free(memory_, data_);
    data_ = nullptr;
  }
}

}  // namespace peal::zero

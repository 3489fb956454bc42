#include "lib/zero/plane.h"

#include <cstring>

namespace peal::zero {

Result<void> Plane::get(Device& device, uint64_t first, uint64_t count, uint16_t* to) const {
  std::vector<std::byte> room;
  const Result<const std::byte*> from =
      device.view<std::byte>(arena_ + first * stride_, count * stride_, room);
  if (!from) {
    return from.error();
  }
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(to + i, *from + i * stride_ + offset_, sizeof *to);
  }
  return {};
}

Result<void> Plane::set(Device& device, uint64_t first, uint64_t count, const uint16_t* from) const {
  std::byte* const at = arena_ + first * stride_;
  std::vector<std::byte> room;
  const Result<const std::byte*> before = device.view<std::byte>(at, count * stride_, room);
  if (!before) {
    return before.error();
  }
  std::byte* const to = device.isHost() ? at : room.data();
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * stride_ + offset_, from + i, sizeof *from);
  }
  return device.isHost() ? Result<void>() : device.upload(at, to, count * stride_);
}

std::vector<Plane> planesOf(const Arena& arena, size_t bytes) {
  std::vector<Plane> planes;
  for (size_t offset = 0; offset < bytes; offset += sizeof(uint16_t)) {
    planes.emplace_back(arena.as<std::byte>(), offset, bytes);
  }
  return planes;
}

}  // namespace peal::zero

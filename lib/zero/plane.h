// 16 bits of each element of an arena: what has more moves half by half where there is room for 16 bits of
// each. A view.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/zero/arena.h"

namespace peal::zero {

class Plane {
 public:
  Plane(std::byte* arena, size_t offsetBytes, size_t strideBytes)
      : arena_(arena), offset_(offsetBytes), stride_(strideBytes) {}
  // Of `count` elements from `first`; to, from: the host's. Both wait.
  Result<void> get(Device& device, uint64_t first, uint64_t count, uint16_t* to) const;
  Result<void> set(Device& device, uint64_t first, uint64_t count, const uint16_t* from) const;

 private:
  std::byte* arena_;
  size_t offset_, stride_;
};

// Of an arena whose elements have `bytes`, an even number.
std::vector<Plane> planesOf(const Arena& arena, size_t bytes);

}  // namespace peal::zero

// CUDA's index types, in the global namespace and with CUDA's names, for source that was written for them.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned sizeX = 1, unsigned sizeY = 1, unsigned sizeZ = 1) : x(sizeX), y(sizeY), z(sizeZ) {}
  constexpr dim3(uint3 size) : x(size.x), y(size.y), z(size.z) {}
};

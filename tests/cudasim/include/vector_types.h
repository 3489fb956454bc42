// dim3 and uint3 as the CUDA toolkit's header of this name has them: what the simulator and host code share
// of the language's built-in types. Nothing else belongs here.
#pragma once

struct uint3 {
  unsigned int x, y, z;
};

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int xSize = 1, unsigned int ySize = 1, unsigned int zSize = 1)
      : x(xSize), y(ySize), z(zSize) {}
  constexpr dim3(uint3 sizes) : x(sizes.x), y(sizes.y), z(sizes.z) {}
};

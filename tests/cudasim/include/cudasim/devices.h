// Which device stands for device `number` of a test: on simulated machines the same. The tests that also run
// on real GPUs find tests/cuda/hardware/cudasim/devices.h in its place.
#pragma once

namespace peal::cudasim {

inline int deviceOf(int number) { return number; }

}  // namespace peal::cudasim

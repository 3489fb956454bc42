// Runs kernels on core, and what a trap does to the process and its devices.
#pragma once
#include <string>
#include <vector>

#include "tests/cudasim/core/run.h"
#include "tests/cudasim/runtime/engine.h"

namespace peal::cudasim {

using NextLaunches = std::function<std::vector<const Launch*>(const Launch& finished)>;

// Runs them all to their ends on the calling thread, and what `next` gives when one has ended. Blocks that do
// not fit beside what else runs on their device wait. Not under the runtime's lock.
void runLaunches(const std::vector<const Launch*>& launches, World world, const NextLaunches& next = nullptr);

// Something that a device cannot survive happened outside a kernel: prints the report and ends the process,
// or makes the device useless to it (cudasim/runtime.h: setTraps).
void loseDevice(int device, cudaError_t error, const std::string& report);

// Attributes of kernels are those of a fresh process again.
void forgetKernelAttributes();

}  // namespace peal::cudasim

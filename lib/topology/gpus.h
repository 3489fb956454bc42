// The GPUs of this process, as CUDA counts them.
//
// lib/topology/gpus_cuda.cpp, or gpus_absent.cpp in a library without CUDA, which leaves a note.
#pragma once
#include "lib/topology/placement.h"
#include "lib/topology/topology.h"

namespace peal {

// Fills the node's gpus; what cannot be found out becomes a note. Makes no CUDA context.
void discoverGpus(const SystemRoots& roots, MachineNode& node);

}  // namespace peal

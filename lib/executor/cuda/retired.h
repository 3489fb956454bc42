// What ended communicators leave behind while something may still use it: CUDA graphs that hold their
// operations and may be launched (which then do nothing), or launches that have not come to their turn.
#pragma once
#include <memory>

namespace peal::cuda {

struct Resources;

// Keeps it until its graphs are destroyed and its kernels have left: they may stand behind another's that
// waits.
void retire(std::unique_ptr<Resources> resources);
// Frees what retire() kept and nothing uses any more. Called whenever a communicator begins or ends.
void freeRetired();

}  // namespace peal::cuda

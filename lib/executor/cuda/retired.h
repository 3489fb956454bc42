// What ended communicators leave behind while something may still use it: CUDA graphs that hold their
// operations and may be launched (which then do nothing), or a device that does not answer.
#pragma once
#include <memory>

namespace peal::cuda {

struct Resources;

// Keeps it until its graphs are destroyed.
void retire(std::unique_ptr<Resources> resources);
// Frees what retire() kept and nothing uses any more. Called whenever a communicator begins or ends.
void freeRetired();
// Never frees it: kernels may still run, and freeing would wait for them for ever.
void abandon(std::unique_ptr<Resources> resources);

}  // namespace peal::cuda

// Watch threads of communicators that this process has destroyed, while ranks of other processes still have
// their windows mapped (destroying a communicator waits for no other rank).
//
// Ends them when the process exits.
#pragma once
#include <memory>

#include "lib/base/clock.h"
#include "transports/cuda_ipc/watch.h"

namespace peal::cuda {

// Keeps it until it is through.
void keepLingering(std::unique_ptr<Watch> watch);

// Waits until every window of a destroyed communicator has been freed. For tests that count what is left.
bool lingeringEnded(Deadline deadline);

}  // namespace peal::cuda

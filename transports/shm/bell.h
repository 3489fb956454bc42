// Sleeping on, and ringing, the bell of a rank (layout.h says how the two pair).
#pragma once
#include <cstdint>

#include "transports/shm/layout.h"

namespace peal::shm {

// Between writing a ring or credit and looking at `sleeping`, and between setting `sleeping` and looking at
// the rings: keeps a store before a later load, which nothing weaker does.
void fullFence();

void ringBell(Bell& bell);
// Waits until the doorbell differs from `token`, or `us` microseconds at most.
void sleepOnBell(Bell& bell, uint32_t token, int64_t us);

}  // namespace peal::shm

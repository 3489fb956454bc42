// Whether stores into peers' windows arrive: tried with real bytes, within a time limit, before anything
// depends on it. Peer access that is reported as possible but loses or misplaces writes exists (an IOMMU or
// PCIe access control between the devices).
#pragma once
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/result.h"
#include "transports/cuda_ipc/card.h"
#include "transports/cuda_ipc/window.h"

namespace peal::cuda {

// Of a window, per rank.
inline constexpr size_t kPatternBytes = 64;
// At least so large is a window, so that every rank has its place in it.
inline constexpr size_t patternsBytes(int ranks) { return static_cast<size_t>(ranks) * kPatternBytes; }

// Writes this rank's pattern into every peer's window and reads it back from there.
Result<void> writePatterns(int device, int rank, const std::vector<Card>& cards,
                           const std::vector<PeerWindow>& peers, Deadline deadline);
// After every rank has written: whether all patterns have arrived in this rank's window. Leaves zeros there.
Result<void> checkPatterns(int device, int rank, const std::vector<Card>& cards, const Window& window,
                           Deadline deadline);

}  // namespace peal::cuda

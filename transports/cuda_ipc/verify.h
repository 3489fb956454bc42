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

// Copies between a page of pinned memory and windows, on a stream of their own, with a time limit. Lives as
// long as the communicator: freeing pinned memory waits for the device, and on it may run kernels of another
// communicator that wait for a call which this rank has yet to make.
class TimedCopies {
 public:
  static Result<TimedCopies> make(int device, size_t bytes);
  std::byte* page() const { return page_.data(); }
  Result<void> copy(void* to, const void* from, size_t bytes, Deadline deadline);
  Result<void> zero(void* to, size_t bytes, Deadline deadline);

 private:
  Result<void> finish(Deadline deadline);

  StreamHolder stream_;
  PinnedBuffer page_;
};

// Writes this rank's pattern into the window of every peer of this node and reads it back from there.
// `copies`: with a page of patternsBytes(ranks).
Result<void> writePatterns(int device, int rank, const std::vector<Card>& cards,
                           const std::vector<PeerWindow>& peers, TimedCopies& copies, Deadline deadline);
// After every rank has written: whether all patterns have arrived in this rank's window. Leaves zeros there.
Result<void> checkPatterns(int device, int rank, const std::vector<PeerWindow>& peers, const Window& window,
                           TimedCopies& copies, Deadline deadline);

}  // namespace peal::cuda

// How the ranks find the path that all of them use: device memory of each other, or else pinned host memory.
//
// The steps, each ending with an exchange in which every rank takes part whatever happened to it:
//   1. cards: who is where; every rank has made its window
//   2. every rank has opened its peers' windows, written its pattern into each, and read it back
//   3. every rank has looked for its peers' patterns in its own window
// One rank against it, in 2 or 3, sends all of them to host memory (host_windows.cpp).
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "transports/cuda_ipc/card.h"
#include "transports/cuda_ipc/memory.h"
#include "transports/cuda_ipc/verify.h"

namespace peal::cuda {

// Windows in device memory; a text instead, the same on all ranks, where one of them cannot. Collective.
// Errors: of the exchange, or what keeps a rank from taking part at all.
struct DeviceWindows {
  std::shared_ptr<Window> window;
  std::vector<PeerWindow> peers;
  std::optional<TimedCopies> copies;   // that tried them
  GpuPath path = GpuPath::SameDevice;  // the slowest of all ranks
  std::string whyNot;
};
// `watch`: this rank's (nullptr if it is alone on its node), or why it has none. It knows the peers of other
// processes from before the last step, because a peer that is through may write at once.
Result<DeviceWindows> connectDeviceWindows(Exchange& exchange, const DeviceMemoryOptions& options,
                                           const Result<std::unique_ptr<Watch>>& watch);

// The same in host memory. Collective.
struct HostWindows {
  std::shared_ptr<Window> window;
  std::vector<PeerWindow> peers;
};
Result<HostWindows> connectHostWindows(Exchange& exchange, const DeviceMemoryOptions& options);

// "rank 2: text", for the first rank with a text; empty if none has one.
template <class T>
std::string firstReason(const std::vector<T>& all, Reason T::*member) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!(all[rank].*member).empty()) {
      return fmt::format("rank {}: {}", rank, (all[rank].*member).text());
    }
  }
  return "";
}

}  // namespace peal::cuda

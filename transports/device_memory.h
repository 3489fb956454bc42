// What the device executor sees of memory that ranks of one node share on their GPUs. One implementation:
// transports/cuda_ipc/. Kernels move the bytes; this only makes memory reachable and says when it is gone.
// A communicator may span nodes: each node's ranks reach each other, and all take the same path.
//
// Used by one communicator. Each function may be called from any thread unless it says otherwise.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/gpu_path.h"
#include "lib/base/result.h"
#include "transports/transport.h"

namespace peal {

// How a rank reaches a peer's memory.
enum class Reach : uint8_t { Self, SameDevice, PeerAccess, Ipc, HostStaging, OtherNode };

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // This rank's window: zeroed memory of the size asked for at creation, that every peer of this node can
  // write. In device memory, or in pinned host memory where a vote of all ranks fell back to it.
  virtual std::byte* window() = 0;
  // A peer's window as kernels of this rank address it; nullptr: the peer is on another node.
  virtual std::byte* peerWindow(int peerRank) = 0;
  virtual Reach reach(int peerRank) const = 0;
  // How the ranks reach each other, and why not better: for logs and system information.
  virtual const std::string& sentence() const = 0;
  // The slowest path of any two ranks, on any node; the same on every rank.
  virtual GpuPath path() const = 0;

  // ---- registered buffers: local calls; peers map them as they notice, and nothing waits for that ----
  // [data, data + bytes): inside one allocation of this device. Errors name what the memory is instead.
  virtual Result<uint64_t> registerBuffer(const void* data, size_t bytes) = 0;
  // Waits until no peer has it mapped, or it is gone. After a fault (farewell() named a culprit, or there is
  // a loss) kernels of peers may be reading it: they are made to leave first, as onWithdrawal() says.
  virtual Result<void> deregisterBuffer(uint64_t id, Deadline deadline) = 0;
  // The same of all that are left. Errors: of the first that could not be.
  virtual Result<void> deregisterAll(Deadline deadline) = 0;
  // Where `peerRank` reads [data, data + bytes) in its own address space; 0: not yet, or it cannot.
  virtual uint64_t addressAt(int peerRank, const void* data, size_t bytes) = 0;

  // ---- health ----
  // A peer's death or departure because of a fault: the error, and whose fault it is.
  struct Loss {
    Error error;
    int culpritRank;
  };
  virtual std::optional<Loss> loss() = 0;
  // Calls `action` once, from another thread, when there is a loss; at once if there is one. nullptr: not any
  // more, and it is not running when this returns. It must be short and call nothing of this object.
  virtual void onLoss(std::function<void()> action) = 0;
  // How this rank lets go of a peer's buffers when that peer takes them back after a fault: `action` makes
  // this rank's kernels leave, now and whenever one starts later, and returns when none is left that reads
  // them. Called from other threads, peers' among them, one at a time. nullptr: no kernel reads them any
  // more; and it is not running when this returns.
  using LetGo = std::function<Result<void>(int culpritRank, Deadline deadline)>;
  virtual void onWithdrawal(LetGo action) = 0;
  // Tells the peers that this rank leaves: in good order (-1) or because of a fault, and of whose.
  virtual void farewell(int culpritRank, const std::string& reason) = 0;
};

struct DeviceMemoryOptions {
  int device = 0;
  size_t windowBytes = 0;  // the same on all ranks
  std::string name;        // of the communicator, for messages
  // Of each rank its number in `control`, -1: it is on another node. Empty: all are on this one, in order.
  std::vector<int> localOf{};
  Deadline deadline;

  bool onThisNode(int rank) const { return localOf.empty() || localOf[static_cast<size_t>(rank)] >= 0; }
};

// Collective over the exchange; all ranks choose the same path. `control`: an endpoint of this node's ranks
// for this object alone, which speaks of them by the communicator's numbers; nullptr for a rank that is alone
// on its node.
Result<std::unique_ptr<DeviceMemory>> connectDeviceMemory(Exchange& exchange,
                                                          std::unique_ptr<Endpoint> control,
                                                          const DeviceMemoryOptions& options);

}  // namespace peal

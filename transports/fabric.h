// What a network brings: links to the ranks on other nodes, over one kind of wire (ucx/, verbs/). What all
// networks share (control connections, farewells, who died, sleeping) is the network endpoint's
// (transports/network/), which owns one fabric.
//
// Threads: one thread at a time uses a fabric and its links, like an endpoint. Nothing here blocks but
// connect().
#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/memory/descriptor.h"
#include "transports/transport.h"

namespace peal {

struct FabricOptions {
  size_t slotBytes = 65536;  // multiple of 64
  int slots = 4;             // messages that may be on their way in one direction of a link
  // No two ranks of the communicator share a node: no rank has other links, whose slots and bursts its calls
  // must be cut for as well.
  bool ranksApart = false;
};

// For a network on which a message costs much and several in one call hardly more: so many times as many
// slots, and as large, as far as one direction of a link stays within 2 MiB; what was asked for is the least.
// Their memory costs nothing until it is used, by turns all of it. The same as asked where ranks share nodes.
FabricOptions enlarged(const FabricOptions& asked, int slotsFactor, size_t bytesFactor);

// Why a link cannot go on, and to whom it leads.
struct FabricFault {
  Error error;
  int peerRank = -1;
};

// The first fault of each link, of which the first that counts is shown. A peer that left in good order is
// excused: its link may fail, and must not hide the fault of another.
class FabricFaults {
 public:
  void raise(int peerRank, Error error) {
    const auto same = [&](const FabricFault& fault) { return fault.peerRank == peerRank; };
    if (!isExcused(peerRank) && std::none_of(all_.begin(), all_.end(), same)) {
      all_.push_back({std::move(error), peerRank});
      show();
    }
  }
  void excuse(int peerRank) {
    excused_.push_back(peerRank);
    show();
  }
  const std::optional<FabricFault>& first() const { return first_; }

 private:
  bool isExcused(int peerRank) const {
    return std::find(excused_.begin(), excused_.end(), peerRank) != excused_.end();
  }
  void show() {
    const auto counts = [&](const FabricFault& fault) { return !isExcused(fault.peerRank); };
    const auto found = std::find_if(all_.begin(), all_.end(), counts);
    first_ = found == all_.end() ? std::optional<FabricFault>() : *found;
  }

  std::vector<FabricFault> all_;
  std::vector<int> excused_;
  std::optional<FabricFault> first_;
};

// A TCP connection to the fabric of a peer: non-blocking, without delay, and both ends know whom they have.
struct PeerSocket {
  int peerRank = -1;
  OwnedFd socket;
};

// What a fabric may use of the control connections.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  // Small messages to the fabric of a peer beside the data: in order, while both live. They arrive at its
  // onControl().
  virtual void send(int peerRank, std::span<const std::byte> message) = 0;  // at most 4 KiB
  // A connection more to each of `peers`, for a fabric whose data travel so. Collective over all ranks of the
  // exchange; an error on any rank is one on all.
  virtual Result<std::vector<PeerSocket>> connections(Exchange& /*exchange*/,
                                                      const std::vector<int>& /*peers*/,
                                                      Deadline /*deadline*/) {
    return Error{pealInternalError, "these control connections make no others"};
  }
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual const char* name() const = 0;

  // Makes the links to `peers`, the ranks on other nodes. Collective over all ranks of the exchange, which
  // serves as often as needed; a rank that fails says so in the exchange, so that all fail. `control` serves
  // from the return of connect() to the fabric's end.
  virtual Result<void> connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane& control,
                               Deadline deadline) = 0;
  virtual Link& link(int peerRank) = 0;
  // As of an endpoint (transport.h), where slots of `asked` bytes were asked for.
  virtual size_t slotBytes(size_t asked) const { return asked; }
  virtual int burst() const { return 1; }
  virtual bool copiesReferences() const { return false; }
  virtual bool mayReachGpus() const { return false; }
  virtual Result<std::vector<std::byte>> reachGpu(const GpuMemory& /*memory*/) {
    return Error{pealInvalidUsage, std::string(name()) + " does not reach memory of GPUs"};
  }
  virtual void leaveGpu() {}
  virtual Result<void> peerGpu(int /*peerRank*/, const std::vector<std::byte>& /*keys*/) {
    return Error{pealInvalidUsage, std::string(name()) + " does not reach memory of GPUs"};
  }

  // Moves outstanding work on; cheap when there is none.
  virtual void poll() = 0;
  // Whether everything that was posted, and every credit that a peer without any waits for as far as this
  // rank has seen of its messages, reaches its peer without further calls of poll().
  virtual bool settled() = 0;
  // The first fault of a link whose peer is not excused, if any. Posted messages that arrived before it are
  // still shown.
  virtual const std::optional<FabricFault>& fault() const = 0;
  // That peer left in good order, and its link has failed: nothing comes from there and nothing goes there
  // any more, and that is no fault.
  virtual void excuse(int peerRank) = 0;
  // After a fault, when nothing is sent or received any more: when it returns, nobody reads memory that was
  // posted by reference. Messages on their way may be lost.
  virtual void withdraw() {}
  // Whether that peer has left and nothing more can come from it. For fabrics whose links do not fail at
  // their peer's end.
  virtual bool isOver(int /*peerRank*/) const { return false; }
  virtual void onControl(int peerRank, std::span<const std::byte> message) = 0;

  // Sleeping: after arm() returned true the descriptor becomes readable when poll() has something to do;
  // false: there is something now. A fabric without such a descriptor returns -1, and sleeps are short.
  virtual int eventDescriptor() const = 0;
  virtual bool arm() = 0;
};

}  // namespace peal

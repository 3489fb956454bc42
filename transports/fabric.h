// What a network brings: links to the ranks on other nodes, over one kind of wire (ucx/, verbs/). What all
// networks share (control connections, farewells, who died, sleeping) is the network endpoint's
// (transports/network/), which owns one fabric.
//
// Threads: one thread at a time uses a fabric and its links, like an endpoint. Nothing here blocks but
// connect().
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "lib/base/clock.h"
#include "transports/transport.h"

namespace peal {

struct FabricOptions {
  size_t slotBytes = 65536;  // multiple of 64
  int slots = 4;             // messages that may be on their way in one direction of a link
};

// Why a link cannot go on, and to whom it leads.
struct FabricFault {
  Error error;
  int peerRank = -1;
};

// Small messages to the fabric of a peer beside the data: in order, while both live. They arrive at its
// onControl().
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  virtual void send(int peerRank, std::span<const std::byte> message) = 0;  // at most 4 KiB
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

  // Moves outstanding work on; cheap when there is none.
  virtual void poll() = 0;
  // Whether everything that was posted, and every credit that a peer without any waits for, reaches its peer
  // without further calls of poll().
  virtual bool settled() = 0;
  // The first fault of a link, if any. Posted messages that arrived before it are still shown.
  virtual const std::optional<FabricFault>& fault() const = 0;
  virtual void onControl(int peerRank, std::span<const std::byte> message) = 0;

  // Sleeping: after arm() returned true the descriptor becomes readable when poll() has something to do;
  // false: there is something now. A fabric without such a descriptor returns -1, and sleeps are short.
  virtual int eventDescriptor() const = 0;
  virtual bool arm() = 0;
};

}  // namespace peal

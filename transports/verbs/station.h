// What the links of a fabric have in common. Owned by the fabric, which outlives its links.
#pragma once
#include <optional>
#include <vector>

#include "transports/fabric.h"
#include "transports/verbs/devices.h"
#include "transports/verbs/memory.h"
#include "transports/verbs/options.h"
#include "transports/verbs/wire.h"

namespace peal::verbs {

class VerbsLink;

struct Station {
  Options options;
  int rank = -1;
  ControlPlane* control = nullptr;  // from the return of connect()
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Rail> rails;
  PinnedMemory outgoing;  // where messages are staged; only this rank's devices read it
  PinnedMemory incoming;  // the slots that peers write
  ReachedMemory gpu;      // of this rank; nothing until reachGpu()
  RegistrationCache registrations;

  FabricFaults faults;
  uint64_t unacknowledged = 0;      // messages of all links
  std::vector<VerbsLink*> pending;  // links whose pump() has something to do

  size_t slotStride() const { return sizeof(Header) + options.fabric.slotBytes; }
  size_t linkBytes() const { return slotStride() * static_cast<size_t>(options.fabric.slots); }
  void raise(int peerRank, Error error) { faults.raise(peerRank, std::move(error)); }
};

}  // namespace peal::verbs

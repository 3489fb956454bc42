// Rails: which NIC serves which GPU, and why a NIC serves nobody.
//
// Pure. The nearest NIC serves a GPU, and NICs share GPUs evenly. Only the fastest NICs that can be used are
// rails: a chain of ranks is as slow as its slowest rail.
#pragma once
#include <string>

#include "lib/topology/topology.h"

namespace peal {

// What the configuration excludes; lists as in lib/base/patterns.h.
struct RailChoice {
  std::string interfaces;   // PEAL_INTERFACE: names, prefixes or subnets
  std::string rdmaDevices;  // PEAL_IB_DEVICES: names or prefixes, each perhaps with :port
};

// Fills gpus and idle of each NIC of each node. What a description states is kept: a NIC with a reason stays
// idle, and in a node where it says which GPUs a NIC serves, the NICs of which it says nothing serve none.
void assignRails(Topology& topology, const RailChoice& choice = {});

// Indices of the node's NICs that are rails: not idle. Ascending.
std::vector<size_t> railsOf(const MachineNode& node);

// Bytes per second of a NIC, 0 if its speed is not known.
double nicBytesPerSecond(const Nic& nic);

}  // namespace peal

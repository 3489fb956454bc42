// Makes a communicator's links between its ranks' host memory, whatever lies between them: shared memory
// inside a node, a network between nodes, both behind one endpoint.
//
// Called by lib/comm/create.cpp; the parts by lib/comm/device.cpp, for links that serve a GPU's ranks. Knows
// no algorithm.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "algorithms/grouping.h"
#include "lib/base/clock.h"
#include "lib/bootstrap/bootstrap.h"
#include "transports/network/network.h"

namespace peal {

struct HostLinkOptions {
  size_t slotBytes = 65536;
  int slots = 4;
  bool directRead = true;
  std::string interfaces;                // PEAL_INTERFACE
  std::vector<FabricCandidate> fabrics;  // tried between nodes, in this order
  Deadline deadline;
};

// Collective over the exchange. An error on any rank is one on all.
Result<std::unique_ptr<Endpoint>> connectHosts(Exchange& exchange, const Secret& secret,
                                               const Grouping& grouping, const HostLinkOptions& options);

// The parts: links among the ranks of this rank's node, numbered there but named by the communicator's
// numbers (to nobody, for a rank that is alone); and links to the ranks of all other nodes. Collective over
// the exchange, all ranks, likewise.
Result<std::unique_ptr<Endpoint>> connectNode(Exchange& exchange, const Secret& secret,
                                              const Grouping& grouping, const HostLinkOptions& options);
Result<std::unique_ptr<NetworkEndpoint>> connectNodes(Exchange& exchange, const Secret& secret,
                                                      const Grouping& grouping,
                                                      const HostLinkOptions& options);

// What PEAL_TRANSPORT allows, best first.
std::vector<FabricCandidate> configuredFabrics();

// What would carry messages between nodes if all of them were like this machine, and how calls are cut for it
// (as of an endpoint). Without a name: nothing could.
struct ExpectedNetwork {
  std::string name;
  size_t slotBytes = 0;
  int burst = 1;
};
ExpectedNetwork expectedNetwork(const FabricOptions& options);

}  // namespace peal

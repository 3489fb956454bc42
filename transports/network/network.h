// Links to the ranks on other nodes: one fabric (ucx, verbs) for the data, and a mesh of authenticated TCP
// connections for what all fabrics need beside it (farewells, who died, what a peer is doing).
//
// Called by lib/comm when a communicator spans several nodes.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "transports/fabric.h"

namespace peal {

// A kind of wire that may serve, in the order in which they are tried.
struct FabricCandidate {
  std::string name;
  std::function<Result<std::unique_ptr<Fabric>>(const FabricOptions&)> open;
};

struct NetworkOptions {
  FabricOptions fabric;
  std::vector<int> peers;  // ranks on other nodes, in rising order
  std::string interfaces;  // PEAL_INTERFACE: where this rank listens
  Deadline deadline;       // of all connecting
};

// An endpoint with links to `peers` only. `bridge` lets a rank sleep elsewhere: see sleepElsewhere().
class NetworkEndpoint : public Endpoint {
 public:
  // From now on whatever would end a sleep here calls `wake` instead (on another thread), between
  // prepareSleep() and cancelSleep(); sleep() is not called. For an owner that sleeps on another bell. False:
  // the fabric has no descriptor to watch, so the owner must not sleep for long.
  virtual bool sleepElsewhere(std::function<void()> wake) = 0;
  // After prepareSleep(): whether there is something to do already.
  virtual bool pending() const = 0;
};

// Collective over all ranks of the exchange, also those without peers. The first candidate that all ranks can
// open and connect serves. `secret` is known to the ranks of this communicator only. If no candidate is left
// the error says what each was tried on and why it failed, and on which ranks.
Result<std::unique_ptr<NetworkEndpoint>> connectNetwork(Exchange& exchange,
                                                        const std::array<uint8_t, 32>& secret,
                                                        const std::vector<FabricCandidate>& candidates,
                                                        const NetworkOptions& options);

}  // namespace peal

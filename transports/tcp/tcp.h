// The network over plain TCP: a connection of its own to each peer, beside the control connection. Needs
// nothing but the kernel, so it serves wherever there is no RDMA.
//
// Called by lib/comm (openTcp).
#pragma once
#include <memory>
#include <string>

#include "transports/fabric.h"

namespace peal {

// A fabric that is not connected yet.
Result<std::unique_ptr<Fabric>> openTcp(const FabricOptions& options);
// The same with a congestion control of its own, by the system's name; where the system refuses it, or it is
// empty, with the system's.
Result<std::unique_ptr<Fabric>> openTcpWith(const FabricOptions& options, const std::string& congestion);

}  // namespace peal

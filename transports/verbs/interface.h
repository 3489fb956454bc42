// Whether PEAL_INTERFACE lets a port's addresses through: an RDMA port comes and goes with its network
// interfaces.
#pragma once
#include <infiniband/verbs.h>

#include <string>
#include <vector>

#include "transports/verbs/options.h"

namespace peal::verbs {

// Takes out of the GID table of a port what options.interfaces does not select: entries by the name of their
// interface and by their own address, InfiniBand's by its interface for IP. An interface is excluded as a
// whole, whichever of its addresses a "^subnet" matches. InfiniBand without such an interface is nothing that
// the list speaks of, and stays. Returns the interfaces of what went, for people: "eth0, eth0.5".
std::string dropUnselected(std::vector<ibv_gid_entry>& table, const std::string& device, int port,
                           const Options& options);

}  // namespace peal::verbs

// Which network interfaces an RDMA device's port belongs to, as the kernel tells below /sys/class/infiniband.
//
// Used by the topology, to show one NIC instead of two, and by the transports that PEAL_INTERFACE binds.
#pragma once
#include <string>
#include <vector>

namespace peal {

inline constexpr const char* kRdmaRoot = "/sys/class/infiniband";

// Names, the port's own first; VLANs and the like of it follow. `root` is kRdmaRoot, or a copy of it. Empty:
// it belongs to none (InfiniBand without IP), or to one of another network namespace.
std::vector<std::string> interfacesOfRdmaPort(const std::string& root, const std::string& device, int port);

}  // namespace peal

// Network cards and interfaces: what /sys/class/net and /sys/class/infiniband say of them.
//
// Reads files only; the interfaces of this network namespace come from liveInterfaces(). Used by discovery.
#pragma once
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/topology/placement.h"
#include "lib/topology/topology.h"

namespace peal {

// One interface of the caller's network namespace.
struct LiveInterface {
  std::string name;
  int index = 0;  // /sys may show another namespace's interface of the same name: it has another index
  bool switchedOn = false;
  bool loopback = false;
  std::vector<std::string> addresses;  // "10.0.0.1/24"
};
Result<std::vector<LiveInterface>> liveInterfaces();

// One entry per interface, with the RDMA port that belongs to it, and one per RDMA port without an interface.
std::vector<Nic> discoverNics(const std::vector<LiveInterface>& interfaces, const SystemRoots& roots = {});

// Whether an address such as "10.0.0.1/24" lies in a subnet such as "10.0.0.0/8"; false for what is neither.
bool inSubnet(const std::string& address, const std::string& subnet);

}  // namespace peal

// What peal knows of machines: processors, memory, devices, networks, and which NIC serves which GPU.
//
// Plain data. It comes from discovery (discover.h) or from a described file (described.h); who reads it
// cannot tell the difference. Numbers of processors, NUMA nodes and GPUs are the system's. -1 and empty texts
// mean "not known".
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/topology/cpu_set.h"

namespace peal {

struct Package {
  int id = 0;
  std::string model;
  CpuSet cpus;
  bool operator==(const Package&) const = default;
};

struct NumaNode {
  int id = 0;
  CpuSet cpus;  // may be empty: memory without processors
  uint64_t memoryBytes = 0;
  bool allowed = true;  // whether this process may take memory from it
  bool operator==(const NumaNode&) const = default;
};

struct Cache {
  int level = 0;  // data and unified caches only
  uint64_t bytes = 0;
  CpuSet cpus;
  bool operator==(const Cache&) const = default;
};

struct Core {
  CpuSet cpus;  // its hardware threads
  bool operator==(const Core&) const = default;
};

// Where a device hangs.
struct PciPlace {
  std::string address;               // "0000:0c:00.0"; empty: not on PCI
  std::vector<std::string> bridges;  // from the host bridge ("pci0000:00") down to the one above the device
  int numaNode = -1;
  bool operator==(const PciPlace&) const = default;
};

struct PciDevice {
  PciPlace place;
  std::string kind;  // "network", "storage", "display", "3D", "accelerator", "other"
  bool operator==(const PciDevice&) const = default;
};

struct Gpu {
  int device = 0;  // CUDA's number in this process
  std::string name;
  uint64_t memoryBytes = 0;
  PciPlace place;
  std::vector<int> peers;  // GPUs whose memory it can map
  bool operator==(const Gpu&) const = default;
};

enum class NicKind { Ethernet, InfiniBand, Loopback, Virtual };

// One port of a network card, or an interface without one.
struct Nic {
  std::string interface;  // "eth0"; empty: an RDMA port without an interface
  std::string rdma;       // "mlx5_0"; empty: no RDMA
  int port = 0;           // of the RDMA device, from 1
  NicKind kind = NicKind::Ethernet;
  int64_t speedMbps = -1;
  std::string state = "up";  // anything else says why it is not up
  std::string driver;
  PciPlace place;
  std::vector<std::string> addresses;  // "10.0.0.1/24"
  // Rails (rails.h). Both empty: it has no rail yet, or serves a machine without GPUs.
  std::vector<int> gpus;  // that it serves
  std::string idle;       // why it serves nobody
  bool operator==(const Nic&) const = default;

  const std::string& name() const { return interface.empty() ? rdma : interface; }
};

struct MachineNode {
  std::string name;
  int count = 1;  // how many such nodes there are: described clusters
  int ranks = 0;  // that a job places on each; 0: not said
  CpuSet allowedCpus;
  std::vector<Package> packages;
  std::vector<NumaNode> numaNodes;
  std::vector<Cache> caches;
  std::vector<Core> cores;
  std::vector<PciDevice> pciDevices;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  std::vector<std::string> notes;  // what could not be found out, and why
  bool operator==(const MachineNode&) const = default;
};

// What one rank's link reaches; 0: not known. Described, never discovered.
struct LinkClass {
  double gigabytesPerSecond = 0;
  double latencyUs = 0;
  bool operator==(const LinkClass&) const = default;
};

struct Topology {
  std::vector<MachineNode> nodes;
  LinkClass insideNode;
  LinkClass betweenNodes;
  bool operator==(const Topology&) const = default;
};

// How near two devices of a node are; less is nearer.
enum class Nearness { SamePciBridge, SameHostBridge, SameNumaNode, OtherNumaNode, Unknown };
struct Distance {
  Nearness nearness = Nearness::Unknown;
  int bridges = 0;  // between them, if below one host bridge
  auto operator<=>(const Distance&) const = default;
};
Distance distance(const PciPlace& a, const PciPlace& b);

}  // namespace peal

#include "lib/topology/discover.h"

#include <algorithm>

#include "lib/base/config.h"
#include "lib/base/node.h"
#include "lib/topology/described.h"
#include "lib/topology/gpus.h"

namespace peal {
namespace {

int holderOf(const MachineNode& node, const CpuSet& cpus) {
  for (const NumaNode& numa : node.numaNodes) {
    if (numa.cpus.contains(cpus)) {
      return numa.id;
    }
  }
  return -1;
}

// Virtual machines often leave numa_node at -1. hwloc finds the place by the bus, and where there is one NUMA
// node there is no question.
void completePlace(const MachineNode& node, PciPlace& place) {
  if (place.address.empty() || place.numaNode >= 0) {
    return;
  }
  for (const PciDevice& device : node.pciDevices) {
    if (device.place.address == place.address) {
      place.numaNode = device.place.numaNode;
    }
  }
  if (place.numaNode < 0 && node.numaNodes.size() == 1) {
    place.numaNode = node.numaNodes.front().id;
  }
}

}  // namespace

void noteRemoteMemory(MachineNode& node) {
  if (node.allowedCpus.empty()) {
    node.notes.emplace_back("the kernel does not say which processors are allowed");
  } else if (node.numaNodes.size() > 1) {
    const int home = holderOf(node, node.allowedCpus);
    const auto memory = std::find_if(node.numaNodes.begin(), node.numaNodes.end(),
                                     [&](const NumaNode& numa) { return numa.id == home; });
    if (memory != node.numaNodes.end() && !memory->allowed) {
      node.notes.push_back("the allowed processors are on NUMA node " + std::to_string(home) +
                           ", whose memory is not allowed: all memory is remote");
    }
  }
}

Result<Topology> discoverTopology(const std::string& name, const ProcessorSource& source,
                                  const std::vector<LiveInterface>& interfaces, const RailChoice& choice) {
  Topology topology;
  MachineNode& node = topology.nodes.emplace_back();
  node.name = name;
  PEAL_TRY(discoverProcessors(source, node));
  discoverGpus(source.roots, node);
  node.nics = discoverNics(interfaces, source.roots);
  for (Gpu& gpu : node.gpus) {
    completePlace(node, gpu.place);
  }
  for (Nic& nic : node.nics) {
    completePlace(node, nic.place);
  }
  noteRemoteMemory(node);
  assignRails(topology, choice);
  return topology;
}

Result<Topology> currentTopology(const std::string& file) {
  const Result<Configuration>& table = configuration();
  if (!table) {
    return table.error();
  }
  const RailChoice choice{table->text(Knob::Interface), table->text(Knob::IbDevices)};
  const std::string& described = file.empty() ? table->text(Knob::TopologyFile) : file;
  if (!described.empty()) {
    Result<Topology> topology = readTopologyFile(described);
    if (topology) {
      assignRails(*topology, choice);
    }
    return topology;
  }
  const Result<std::vector<LiveInterface>> interfaces = liveInterfaces();
  if (!interfaces) {
    return interfaces.error();
  }
  return discoverTopology(nodeName(nodeIdentity()), {}, *interfaces, choice);
}

}  // namespace peal

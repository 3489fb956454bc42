#include "lib/topology/described.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "lib/topology/files.h"
#include "lib/topology/json_object.h"
#include "lib/topology/pci.h"

namespace peal {
namespace {

using nlohmann::ordered_json;

constexpr const char* kFormat = "peal-topology-1";
constexpr size_t kMostFileBytes = 16 << 20;
constexpr size_t kMostNodes = 65536;
constexpr size_t kMostParts = 65536;  // cores, caches, ... of a node
constexpr size_t kMostDevices = 256;  // GPUs and NICs of a node
constexpr int kLargestId = 1 << 20;
constexpr int kMostCount = 65536;

constexpr std::array<std::pair<NicKind, const char*>, 4> kKinds{{{NicKind::Ethernet, "ethernet"},
                                                                 {NicKind::InfiniBand, "infiniband"},
                                                                 {NicKind::Loopback, "loopback"},
                                                                 {NicKind::Virtual, "virtual"}}};

const char* kindName(NicKind kind) {
  return std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& one) { return one.first == kind; })
      ->second;
}

std::string joined(const std::vector<std::string>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::string(),
                         [](std::string text, const std::string& part) {
                           return std::move(text) + (text.empty() ? "" : "/") + part;
                         });
}

// ---- writing ----

void put(ordered_json& out, const PciPlace& place) {
  if (!place.address.empty()) {
    out["pci"] = place.address;
  }
  if (!place.bridges.empty()) {
    out["bridges"] = joined(place.bridges);
  }
  if (place.numaNode >= 0) {
    out["numaNode"] = place.numaNode;
  }
}

ordered_json jsonOf(const Gpu& gpu) {
  ordered_json out{{"device", gpu.device}, {"name", gpu.name}, {"memoryBytes", gpu.memoryBytes}};
  put(out, gpu.place);
  out["peers"] = CpuSet::of(gpu.peers).text();
  return out;
}

ordered_json jsonOf(const Nic& nic) {
  ordered_json out;
  if (!nic.interface.empty()) {
    out["interface"] = nic.interface;
  }
  if (!nic.rdma.empty()) {
    out["rdma"] = nic.rdma;
    out["port"] = nic.port;
  }
  out["kind"] = kindName(nic.kind);
  if (nic.speedMbps >= 0) {
    out["speedMbps"] = nic.speedMbps;
  }
  out["state"] = nic.state;
  if (!nic.driver.empty()) {
    out["driver"] = nic.driver;
  }
  put(out, nic.place);
  out["addresses"] = nic.addresses;
  if (!nic.gpus.empty()) {
    out["gpus"] = CpuSet::of(nic.gpus).text();
  }
  if (!nic.idle.empty()) {
    out["idle"] = nic.idle;
  }
  return out;
}

template <class Parts, class Write>
ordered_json listOf(const Parts& parts, const Write& write) {
  ordered_json list = ordered_json::array();
  for (const auto& part : parts) {
    list.push_back(write(part));
  }
  return list;
}

ordered_json jsonOf(const MachineNode& node) {
  ordered_json out{{"name", node.name}};
  if (node.count != 1) {
    out["count"] = node.count;
  }
  if (node.ranks != 0) {
    out["ranks"] = node.ranks;
  }
  out["allowedCpus"] = node.allowedCpus.text();
  out["packages"] = listOf(node.packages, [](const Package& package) {
    return ordered_json{{"id", package.id}, {"model", package.model}, {"cpus", package.cpus.text()}};
  });
  out["numaNodes"] = listOf(node.numaNodes, [](const NumaNode& numa) {
    return ordered_json{{"id", numa.id},
                        {"cpus", numa.cpus.text()},
                        {"memoryBytes", numa.memoryBytes},
                        {"allowed", numa.allowed}};
  });
  out["caches"] = listOf(node.caches, [](const Cache& cache) {
    return ordered_json{{"level", cache.level}, {"bytes", cache.bytes}, {"cpus", cache.cpus.text()}};
  });
  out["cores"] = listOf(node.cores, [](const Core& core) {
    return ordered_json{{"cpus", core.cpus.text()}};
  });
  out["pciDevices"] = listOf(node.pciDevices, [](const PciDevice& device) {
    ordered_json one{{"kind", device.kind}};
    put(one, device.place);
    return one;
  });
  out["gpus"] = listOf(node.gpus, [](const Gpu& gpu) { return jsonOf(gpu); });
  out["nics"] = listOf(node.nics, [](const Nic& nic) { return jsonOf(nic); });
  out["notes"] = node.notes;
  return out;
}

void put(ordered_json& out, const char* key, const LinkClass& link) {
  if (link != LinkClass{}) {
    out[key] = {{"gigabytesPerSecond", link.gigabytesPerSecond}, {"latencyUs", link.latencyUs}};
  }
}

// ---- reading ----

void readPlace(JsonObject& in, PciPlace& place) {
  std::string bridges = joined(place.bridges);
  in.read("pci", place.address);
  in.read("bridges", bridges);
  in.read("numaNode", place.numaNode, 0, kLargestId);
  if (!place.address.empty() && !isPciAddress(place.address)) {
    in.refuse("pci", fmt::format("\"{}\" is no PCI address such as \"0000:0c:00.0\"", place.address));
  }
  place.bridges.clear();
  for (size_t at = 0; at < bridges.size();) {
    const size_t slash = std::min(bridges.find('/', at), bridges.size());
    const std::string part = bridges.substr(at, slash - at);
    const bool good = place.bridges.empty() ? isPciHostBridge(part) : isPciAddress(part);
    if (!good) {
      in.refuse("bridges", fmt::format("\"{}\" in \"{}\" is no bridge; write it like "
                                       "\"pci0000:00/0000:00:01.0\": a host bridge, then PCI addresses",
                                       part, bridges));
      return;
    }
    place.bridges.push_back(part);
    at = slash + 1;
  }
}

void readGpu(JsonObject& in, size_t index, Gpu& gpu) {
  CpuSet peers;
  gpu.device = static_cast<int>(index);
  in.read("device", gpu.device, 0, kLargestId);
  in.read("name", gpu.name);
  in.read("memoryBytes", gpu.memoryBytes);
  readPlace(in, gpu.place);
  in.read("peers", peers);
  gpu.peers = peers.cpus;
}

void readNic(JsonObject& in, Nic& nic) {
  std::string kind = kindName(nic.kind);
  CpuSet gpus;
  in.read("interface", nic.interface);
  in.read("rdma", nic.rdma);
  nic.port = nic.rdma.empty() ? 0 : 1;
  in.read("port", nic.port, 0, 255);
  in.read("kind", kind);
  in.read("speedMbps", nic.speedMbps, 0, int64_t{1} << 40);
  in.read("state", nic.state);
  in.read("driver", nic.driver);
  readPlace(in, nic.place);
  in.read("addresses", nic.addresses);
  in.read("gpus", gpus);
  in.read("idle", nic.idle);
  nic.gpus = gpus.cpus;
  const auto known =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& one) { return kind == one.second; });
  if (known != kKinds.end()) {
    nic.kind = known->first;
  } else {
    in.refuse("kind", fmt::format("\"{}\" is none of ethernet, infiniband, loopback, virtual", kind));
  }
  if (nic.name().empty()) {
    in.refuse("interface", "a NIC needs a name: \"interface\", \"rdma\", or both");
  }
  if (!nic.gpus.empty() && !nic.idle.empty()) {
    in.refuse("idle", "a NIC that serves GPUs is not idle: state one of the two");
  }
}

// The processors of a node's parts: what is allowed where nothing else is said.
CpuSet allCpus(const MachineNode& node) {
  std::vector<int> all;
  const auto add = [&](const auto& parts) {
    for (const auto& part : parts) {
      all.insert(all.end(), part.cpus.cpus.begin(), part.cpus.cpus.end());
    }
  };
  add(node.packages);
  add(node.numaNodes);
  add(node.cores);
  return CpuSet::of(std::move(all));
}

// References that lead nowhere, and names that stand twice.
void checkDevices(JsonObject& in, const MachineNode& node) {
  std::set<int> gpus, numaNodes;
  std::set<std::string> names;
  for (const NumaNode& numa : node.numaNodes) {
    numaNodes.insert(numa.id);
  }
  const auto checkPlace = [&](const char* list, const std::string& name, const PciPlace& place) {
    if (place.numaNode >= 0 && !numaNodes.empty() && numaNodes.count(place.numaNode) == 0) {
      in.refuse(list, fmt::format("{} is on NUMA node {}, which \"numaNodes\" does not have", name,
                                  place.numaNode));
    }
  };
  for (const Gpu& gpu : node.gpus) {
    if (!gpus.insert(gpu.device).second) {
      in.refuse("gpus", fmt::format("device {} stands there twice", gpu.device));
    }
    checkPlace("gpus", fmt::format("device {}", gpu.device), gpu.place);
  }
  const auto checkGpus = [&](const char* list, const std::string& name, const std::vector<int>& named) {
    for (const int gpu : named) {
      if (gpus.count(gpu) == 0) {
        in.refuse(list, fmt::format("{} names GPU {}, which \"gpus\" does not have", name, gpu));
      }
    }
  };
  for (const Gpu& gpu : node.gpus) {
    checkGpus("gpus", fmt::format("device {}", gpu.device), gpu.peers);
  }
  for (const Nic& nic : node.nics) {
    if (!names.insert(fmt::format("{} {} {}", nic.interface, nic.rdma, nic.port)).second) {
      in.refuse("nics", fmt::format("{} stands there twice", nic.name()));
    }
    checkPlace("nics", nic.name(), nic.place);
    checkGpus("nics", nic.name(), nic.gpus);
  }
}

void readNode(JsonObject& in, size_t index, MachineNode& node) {
  node.name = fmt::format("node{}", index);
  in.read("name", node.name);
  in.read("count", node.count, 1, kMostCount);
  in.read("ranks", node.ranks, 0, kMostCount);
  in.readArray("packages", kMostParts, [&](JsonObject& part, size_t at) {
    Package& package = node.packages.emplace_back();
    package.id = static_cast<int>(at);
    part.read("id", package.id, 0, kLargestId);
    part.read("model", package.model);
    part.read("cpus", package.cpus);
  });
  in.readArray("numaNodes", kMostParts, [&](JsonObject& part, size_t at) {
    NumaNode& numa = node.numaNodes.emplace_back();
    numa.id = static_cast<int>(at);
    part.read("id", numa.id, 0, kLargestId);
    part.read("cpus", numa.cpus);
    part.read("memoryBytes", numa.memoryBytes);
    part.read("allowed", numa.allowed);
  });
  in.readArray("caches", kMostParts, [&](JsonObject& part, size_t) {
    Cache& cache = node.caches.emplace_back();
    part.read("level", cache.level, 1, 5);
    part.read("bytes", cache.bytes);
    part.read("cpus", cache.cpus);
  });
  in.readArray("cores", kMostParts,
               [&](JsonObject& part, size_t) { part.read("cpus", node.cores.emplace_back().cpus); });
  in.readArray("pciDevices", kMostParts, [&](JsonObject& part, size_t) {
    PciDevice& device = node.pciDevices.emplace_back();
    part.read("kind", device.kind);
    readPlace(part, device.place);
  });
  in.readArray("gpus", kMostDevices,
               [&](JsonObject& part, size_t at) { readGpu(part, at, node.gpus.emplace_back()); });
  in.readArray("nics", kMostDevices,
               [&](JsonObject& part, size_t) { readNic(part, node.nics.emplace_back()); });
  in.read("notes", node.notes);
  node.allowedCpus = allCpus(node);
  in.read("allowedCpus", node.allowedCpus);
  checkDevices(in, node);
}

void readLink(JsonObject& in, const char* key, LinkClass& link) {
  in.readObject(key, [&](JsonObject& part) {
    part.read("gigabytesPerSecond", link.gigabytesPerSecond);
    part.read("latencyUs", link.latencyUs);
  });
}

void readAll(JsonObject& in, Topology& topology) {
  std::string format;
  in.read("format", format);
  if (format != kFormat) {
    in.refuse("format",
              fmt::format("is \"{}\"; this peal reads \"{}\". peal-info --topology --json writes one to "
                          "start from",
                          format, kFormat));
  }
  readLink(in, "insideNode", topology.insideNode);
  readLink(in, "betweenNodes", topology.betweenNodes);
  in.readArray("nodes", kMostNodes,
               [&](JsonObject& part, size_t at) { readNode(part, at, topology.nodes.emplace_back()); });
  if (topology.nodes.empty()) {
    in.refuse("nodes", "there is no node; describe at least one");
  }
}

}  // namespace

std::string topologyJson(const Topology& topology) {
  ordered_json out{{"format", kFormat}};
  put(out, "insideNode", topology.insideNode);
  put(out, "betweenNodes", topology.betweenNodes);
  out["nodes"] = listOf(topology.nodes, [](const MachineNode& node) { return jsonOf(node); });
  // Names come from outside and may hold any bytes, JSON only UTF-8.
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

Result<Topology> parseTopology(const std::string& text, const std::string& source) {
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& fault) {
    std::string what = fault.what();
    what = what.substr(what.find("] ") == std::string::npos ? 0 : what.find("] ") + 2);
    return Error{pealInvalidArgument,
                 fmt::format("{}: not JSON: {}. docs/TOPOLOGY.md shows the form.", source, what)};
  }
  JsonFault fault;
  Topology topology;
  {
    JsonObject root(value, source, fault);
    readAll(root, topology);
  }
  if (!fault.sentence.empty()) {
    return Error{pealInvalidArgument, fault.sentence + ". docs/TOPOLOGY.md shows the form."};
  }
  return topology;
}

Result<Topology> readTopologyFile(const std::string& path) {
  std::error_code fault;
  const auto bytes = std::filesystem::file_size(path, fault);
  if (fault || bytes > kMostFileBytes) {
    return Error{
        pealInvalidArgument,
        fmt::format(
            "the topology file {} cannot be read: {}. It is named by PEAL_TOPOLOGY_FILE or on the "
            "command line.",
            path, fault ? fault.message() : fmt::format("{} bytes are more than {}", bytes, kMostFileBytes))};
  }
  const std::optional<std::string> text = readFile(path);
  if (!text) {
    return Error{
        pealInvalidArgument,
        fmt::format("the topology file {} cannot be opened. It is named by PEAL_TOPOLOGY_FILE or on the "
                    "command line.",
                    path)};
  }
  return parseTopology(*text, path);
}

}  // namespace peal

// What /sys says of processors and memory without hwloc. See processors.h.
#include <charconv>

#include "lib/topology/files.h"
#include "lib/topology/processors.h"

namespace peal {
namespace {

// "Node 0 MemTotal:  24689120 kB"
uint64_t memoryBytes(const std::string& folder) {
  const std::string text = readFile(folder + "/meminfo").value_or("");
  const std::string key = "MemTotal:";
  const size_t at = text.find(key);
  const size_t first = at == std::string::npos ? at : text.find_first_of("0123456789", at + key.size());
  uint64_t kib = 0;
  if (first != std::string::npos) {
    std::from_chars(text.data() + first, text.data() + text.size(), kib);
  }
  return kib * 1024;
}

}  // namespace

void discoverProcessorsBySys(const ProcessorSource& source, MachineNode& node) {
  node.allowedCpus = source.allowed ? *source.allowed : allowedCpuSet();
  const CpuSet memory = allowedMemoryNodes(source.roots);
  const std::string nodes = source.roots.sys + "/devices/system/node";
  const std::optional<CpuSet> ids = parseCpuSet(readLine(nodes + "/online"));
  for (const int id : ids.value_or(CpuSet{}).cpus) {
    const std::string folder = nodes + "/node" + std::to_string(id);
    NumaNode numa;
    numa.id = id;
    numa.cpus = parseCpuSet(readLine(folder + "/cpulist")).value_or(CpuSet{});
    numa.memoryBytes = memoryBytes(folder);
    numa.allowed = memory.empty() || memory.contains(id);
    node.numaNodes.push_back(std::move(numa));
  }
}

}  // namespace peal

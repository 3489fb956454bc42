#include "lib/topology/placement.h"

#include <sched.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>

#include "lib/topology/files.h"

namespace peal {

CpuSet allowedCpuSet() {
  // The kernel's mask may be wider than cpu_set_t; it says so by EINVAL.
  for (int bits = CPU_SETSIZE; bits <= 1 << 20; bits *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(static_cast<size_t>(bits)),
                                                               [](cpu_set_t* mask) { CPU_FREE(mask); });
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(bits));
    if (set != nullptr && sched_getaffinity(0, bytes, set.get()) == 0) {
      std::vector<int> cpus;
      for (int cpu = 0; cpu < bits; ++cpu) {
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set.get())) {
          cpus.push_back(cpu);
        }
      }
      return CpuSet::of(std::move(cpus));
    }
    if (set == nullptr || errno != EINVAL) {
      break;
    }
  }
  return {};
}

CpuSet allowedMemoryNodes(const SystemRoots& roots) {
  const std::string status = readFile(roots.proc + "/self/status").value_or("");
  const std::string key = "Mems_allowed_list:";
  const size_t at = status.find(key);
  if (at == std::string::npos) {
    return {};
  }
  return parseCpuSet(trimmed(status.substr(at + key.size(), status.find('\n', at) - at - key.size())))
      .value_or(CpuSet{});
}

int numaNodeOfCpu(int cpu, const SystemRoots& roots) {
  // The processor's folder has a link named after its node.
  const std::string folder = roots.sys + "/devices/system/cpu/cpu" + std::to_string(cpu);
  for (const std::string& name : namesIn(folder)) {
    int node = -1;
    const char* const end = name.data() + name.size();
    if (name.starts_with("node") && std::from_chars(name.data() + 4, end, node).ptr == end &&
        name.size() > 4) {
      return node;
    }
  }
  return -1;
}

int numaNodeOfCpus(const CpuSet& cpus, const SystemRoots& roots) {
  int node = -1;
  for (const int cpu : cpus.cpus) {
    const int its = numaNodeOfCpu(cpu, roots);
    if (its < 0 || (node >= 0 && its != node)) {
      return -1;
    }
    node = its;
  }
  return node;
}

}  // namespace peal

// Where this process may run and take memory: its allowed set, never the machine.
//
// Asks the kernel each time (binding may change); needs no hwloc. Used by discovery, and by whoever places
// threads or memory.
#pragma once
#include "lib/topology/cpu_set.h"

namespace peal {

// Folders that tests put elsewhere.
struct SystemRoots {
  std::string sys = "/sys";
  std::string proc = "/proc";
};

// Of the calling thread: what its affinity leaves of its cgroup's processors (Linux keeps the first inside
// the second). Empty only where the kernel does not answer.
CpuSet allowedCpuSet();

// NUMA nodes whose memory this process may take; empty where /proc does not say.
CpuSet allowedMemoryNodes(const SystemRoots& roots = {});

// The NUMA node of a processor, -1 if unknown.
int numaNodeOfCpu(int cpu, const SystemRoots& roots = {});
// The one that holds all of them, -1 if there is none or it is unknown.
int numaNodeOfCpus(const CpuSet& cpus, const SystemRoots& roots = {});

}  // namespace peal

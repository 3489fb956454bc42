// Packages, NUMA nodes, caches, cores and PCI devices of a machine, by hwloc, which is opened at run time.
//
// lib/topology/hwloc_processors.cpp, or processors_absent.cpp in a library that was built without hwloc's
// headers: then /sys gives NUMA nodes and processors, and a note says what is missing.
#pragma once
#include <optional>
#include <string>

#include "lib/base/result.h"
#include "lib/topology/placement.h"
#include "lib/topology/topology.h"

namespace peal {

// What hwloc looks at: this machine, unless one of these is given.
struct ProcessorSource {
  std::string synthetic{};          // hwloc's text, such as "package:2 numa:2 core:4 pu:2"
  std::string xml{};                // hwloc's XML (lstopo --of xml), the text itself
  std::optional<CpuSet> allowed{};  // instead of this thread's, or of the source's
  SystemRoots roots{};
};

// Fills the node's allowedCpus, packages, numaNodes, caches, cores, pciDevices, and notes. What cannot be
// found out is a note, not an error; an error is a source that hwloc refuses. All processors are in it, also
// those that are not allowed.
Result<void> discoverProcessors(const ProcessorSource& source, MachineNode& node);

// The part that needs no hwloc: allowed processors, and NUMA nodes with theirs by /sys.
void discoverProcessorsBySys(const ProcessorSource& source, MachineNode& node);

// One line for peal-info: that hwloc is there, with its version, or why not.
struct HwlocSupport {
  bool available = false;
  std::string reason;
};
HwlocSupport probeHwloc();

}  // namespace peal

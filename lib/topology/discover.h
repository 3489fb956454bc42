// The topology of this machine, or the described one that stands for it.
//
// Used by lib/api. Discovery takes some milliseconds and reads /sys; nothing is kept.
#pragma once
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/topology/nics.h"
#include "lib/topology/processors.h"
#include "lib/topology/rails.h"
#include "lib/topology/topology.h"

namespace peal {

// One node: this machine, with rails. `name`: of the node.
Result<Topology> discoverTopology(const std::string& name, const ProcessorSource& source,
                                  const std::vector<LiveInterface>& interfaces, const RailChoice& choice);

// Notes where a rank's memory cannot be near its processors, and where these are not known.
void noteRemoteMemory(MachineNode& node);

// What this process goes by: the file of PEAL_TOPOLOGY_FILE if there is one, else this machine. `file`, if
// not empty, takes the knob's place.
Result<Topology> currentTopology(const std::string& file = "");

}  // namespace peal

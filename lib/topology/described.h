// Topologies as JSON: what PEAL_TOPOLOGY_FILE reads and pealTopology writes. docs/TOPOLOGY.md has the form.
//
// Reading what was written gives the same topology. nlohmann-json is used here and nowhere else in the
// library: headers only, nothing of it is linked or exported.
#pragma once
#include <string>

#include "lib/base/result.h"
#include "lib/topology/topology.h"

namespace peal {

std::string topologyJson(const Topology& topology);

// `source` names the text in errors, which say where in it, what was found, and what belongs there. Does not
// assign rails.
Result<Topology> parseTopology(const std::string& text, const std::string& source);
Result<Topology> readTopologyFile(const std::string& path);

}  // namespace peal

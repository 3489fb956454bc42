// Link costs from files: that of PEAL_TUNER_FILE, which one communicator measured and others read, and
// described topologies.
#pragma once
#include <optional>
#include <string>

#include "lib/topology/topology.h"
#include "lib/tuner/links.h"

namespace peal {

// The file's numbers; none if there is no such file.
Result<std::optional<LinkTable>> readLinksFile(const std::string& path);
// Others may read it at the same time: it appears whole. A failure is logged, nothing more.
void writeLinksFile(const std::string& path, const LinkTable& links);

// What a topology says of its links: insideNode and betweenNodes, and where it is silent on the latter the
// speed of its NICs. The slowest node counts. otherwise: what it does not say.
LinkTable describedLinks(const Topology& topology, const LinkTable& otherwise);

}  // namespace peal

#include "lib/tuner/links_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "lib/base/log.h"

namespace peal {

Result<std::optional<LinkTable>> readLinksFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    if (errno == ENOENT) {
      return std::optional<LinkTable>();
    }
    return Error{pealInvalidArgument,
                 fmt::format("PEAL_TUNER_FILE={}: cannot be read: {}.", path, std::strerror(errno))};
  }
  std::ostringstream text;
  text << file.rdbuf();
  const Result<LinkTable> links = parseLinks(text.str(), "PEAL_TUNER_FILE=" + path);
  if (!links) {
    return links.error();
  }
  return std::optional<LinkTable>(*links);
}

void writeLinksFile(const std::string& path, const LinkTable& links) {
  const std::string part = path + ".part";
  std::ofstream file(part);
  file << formatLinks(links);
  file.close();
  if (!file || std::rename(part.c_str(), path.c_str()) != 0) {
    log(LogLevel::Warn, fmt::format("PEAL_TUNER_FILE={}: what was measured could not be written there: {}.",
                                    path, std::strerror(errno)));
  }
}

LinkTable describedLinks(const Topology& topology, const LinkTable& otherwise) {
  constexpr double kBytesPerUsOfGigabytes = 1000, kBytesPerUsOfMegabits = 0.125;
  const auto setLatency = [](const LinkClass& link, LinkCost& cost) {
    if (link.latencyUs > 0) {
      cost.latencyUs = link.latencyUs;
      cost.gapUs = std::min(cost.gapUs, link.latencyUs);
    }
  };
  LinkTable links = otherwise;
  setLatency(topology.insideNode, links.inside);
  setLatency(topology.betweenNodes, links.between);
  if (topology.insideNode.gigabytesPerSecond > 0) {
    links.inside.usPerByte = 1 / (topology.insideNode.gigabytesPerSecond * kBytesPerUsOfGigabytes);
  }
  // A table's cost between nodes is that of a node's ways, which its ranks share; a topology's is a rank's.
  double slowest = 0;
  for (const MachineNode& node : topology.nodes) {
    const double ranks = std::max(1, node.ranks > 0 ? node.ranks : static_cast<int>(node.gpus.size()));
    double bytesPerUs = topology.betweenNodes.gigabytesPerSecond * kBytesPerUsOfGigabytes * ranks;
    for (const Nic& nic : node.nics) {
      const bool counts = topology.betweenNodes.gigabytesPerSecond <= 0 && nic.idle.empty() &&
                          nic.state == "up" && nic.kind != NicKind::Loopback && nic.speedMbps > 0;
      bytesPerUs += counts ? static_cast<double>(nic.speedMbps) * kBytesPerUsOfMegabits : 0;
    }
    slowest = slowest > 0 ? std::min(slowest, bytesPerUs) : bytesPerUs;
  }
  if (slowest > 0) {
    links.between.usPerByte = 1 / slowest;
  }
  return links;
}

}  // namespace peal

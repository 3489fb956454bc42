#include "lib/topology/rails.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "lib/base/patterns.h"
#include "lib/topology/nics.h"

namespace peal {
namespace {

constexpr double kBytesPerMegabit = 125000;

std::string speedText(int64_t mbps) {
  return mbps % 1000 == 0 ? fmt::format("{} Gbit/s", mbps / 1000) : fmt::format("{} Mbit/s", mbps);
}

bool pairsStated(const MachineNode& node) {
  return std::any_of(node.nics.begin(), node.nics.end(), [](const Nic& nic) { return !nic.gpus.empty(); });
}

bool isCandidate(const Nic& nic) { return nic.idle.empty(); }

// Gives `why` to the candidates that are not `good`, if any is.
template <class Good, class Why>
void keepGood(MachineNode& node, const Good& good, const Why& why) {
  const auto best = std::find_if(node.nics.begin(), node.nics.end(),
                                 [&](const Nic& nic) { return isCandidate(nic) && good(nic); });
  if (best == node.nics.end()) {
    return;
  }
  const std::string bestName = best->name();
  for (Nic& nic : node.nics) {
    if (isCandidate(nic) && !good(nic)) {
      nic.idle = why(nic, bestName);
    }
  }
}

bool interfaceChosen(const std::string& list, const Nic& nic) {
  return selects(parsePatterns(list), [&](const NamePattern& pattern) {
    return pattern.matches(nic.interface) ||
           std::any_of(nic.addresses.begin(), nic.addresses.end(),
                       [&](const std::string& one) { return inSubnet(one, std::string(pattern.name)); });
  });
}

// A pattern may end in ":port".
bool rdmaChosen(const std::string& list, const Nic& nic) {
  return selects(parsePatterns(list), [&](NamePattern pattern) {
    const size_t colon = pattern.name.find(':');
    const bool anyPort = colon == std::string_view::npos;
    const bool samePort = anyPort || pattern.name.substr(colon + 1) == std::to_string(nic.port);
    pattern.name = pattern.name.substr(0, colon);
    return samePort && pattern.matches(nic.rdma);
  });
}

// What a NIC says by itself.
std::string whyUnusable(const Nic& nic, const RailChoice& choice) {
  if (nic.kind == NicKind::Loopback) {
    return "reaches this machine only";
  }
  if (!nic.interface.empty() && !interfaceChosen(choice.interfaces, nic)) {
    return fmt::format("excluded by PEAL_INTERFACE=\"{}\"", choice.interfaces);
  }
  if (!nic.rdma.empty() && !rdmaChosen(choice.rdmaDevices, nic)) {
    return fmt::format("excluded by PEAL_IB_DEVICES=\"{}\"", choice.rdmaDevices);
  }
  if (nic.state != "up") {
    return nic.state;
  }
  if (nic.rdma.empty() && nic.addresses.empty()) {
    return "has no IP address";
  }
  return "";
}

// Leaves the NICs that are to be rails without a reason.
void findIdle(MachineNode& node, const RailChoice& choice) {
  for (Nic& nic : node.nics) {
    if (isCandidate(nic)) {
      nic.idle = whyUnusable(nic, choice);
    }
  }
  keepGood(
      node, [](const Nic& nic) { return !nic.rdma.empty(); },
      [](const Nic&, const std::string& best) { return fmt::format("has no RDMA, and {} has", best); });
  keepGood(
      node, [](const Nic& nic) { return nic.kind != NicKind::Virtual; },
      [](const Nic&, const std::string& best) { return fmt::format("is virtual, and {} is not", best); });
  int64_t fastest = -1;
  for (const Nic& nic : node.nics) {
    fastest = isCandidate(nic) ? std::max(fastest, nic.speedMbps) : fastest;
  }
  keepGood(
      node, [&](const Nic& nic) { return nic.speedMbps == fastest; },
      [&](const Nic& nic, const std::string& best) {
        return nic.speedMbps < 0
                   ? fmt::format("does not say its speed, and {} has {}", best, speedText(fastest))
                   : fmt::format("slower: {} of {}'s {}", speedText(nic.speedMbps), best, speedText(fastest));
      });
}

// A NIC whose subnets no other node's NIC is in reaches nobody. InfiniBand needs no address.
void findUnreachable(Topology& topology) {
  for (MachineNode& node : topology.nodes) {
    for (Nic& nic : node.nics) {
      if (!isCandidate(nic) || nic.addresses.empty() || node.count > 1 || topology.nodes.size() == 1) {
        continue;
      }
      bool met = false;
      for (const MachineNode& other : topology.nodes) {
        for (const Nic& peer : other.nics) {
          for (const std::string& address : peer.addresses) {
            met = met || (&other != &node &&
                          std::any_of(nic.addresses.begin(), nic.addresses.end(),
                                      [&](const std::string& own) { return inSubnet(address, own); }));
          }
        }
      }
      if (!met) {
        nic.idle = fmt::format("another subnet: no NIC of another node is in {}", nic.addresses.front());
      }
    }
  }
}

// Gives the rails' room to GPUs, nearest pair first and the emptier rail among equals, until every GPU has
// `mostRails` of them or nothing fits. Distances are those of a tree, where a pair that is taken early is
// never missed by one that is nearer; so the greedy choice is the best one.
void pairUp(MachineNode& node, const std::vector<size_t>& rails, size_t mostRails, size_t room) {
  using Key = std::tuple<Distance, size_t, size_t, size_t>;  // distance, GPUs of the rail, GPU, rail
  for (;;) {
    std::optional<Key> best;
    for (size_t gpu = 0; gpu < node.gpus.size(); ++gpu) {
      const int device = node.gpus[gpu].device;
      const auto serves = [&](size_t rail) {
        const std::vector<int>& gpus = node.nics[rail].gpus;
        return std::find(gpus.begin(), gpus.end(), device) != gpus.end();
      };
      if (static_cast<size_t>(std::count_if(rails.begin(), rails.end(), serves)) >= mostRails) {
        continue;
      }
      for (const size_t rail : rails) {
        const size_t load = node.nics[rail].gpus.size();
        const Key key{distance(node.gpus[gpu].place, node.nics[rail].place), load, gpu, rail};
        if (load < room && (!best || key < *best)) {
          best = key;
        }
      }
    }
    if (!best) {
      return;
    }
    node.nics[std::get<3>(*best)].gpus.push_back(node.gpus[std::get<2>(*best)].device);
  }
}

void pairAll(MachineNode& node, const std::vector<size_t>& rails) {
  pairUp(node, rails, 1, (node.gpus.size() + rails.size() - 1) / rails.size());
  // More NICs than GPUs: those that are left serve the nearest of the GPUs that have the fewest.
  for (size_t most = 2; most <= rails.size(); ++most) {
    pairUp(node, rails, most, 1);
  }
  for (const size_t rail : rails) {
    std::sort(node.nics[rail].gpus.begin(), node.nics[rail].gpus.end());
  }
}

}  // namespace

std::vector<size_t> railsOf(const MachineNode& node) {
  std::vector<size_t> rails;
  for (size_t i = 0; i < node.nics.size(); ++i) {
    if (isCandidate(node.nics[i])) {
      rails.push_back(i);
    }
  }
  return rails;
}

void assignRails(Topology& topology, const RailChoice& choice) {
  for (MachineNode& node : topology.nodes) {
    if (!pairsStated(node)) {
      findIdle(node, choice);
    }
  }
  findUnreachable(topology);
  for (MachineNode& node : topology.nodes) {
    const std::vector<size_t> rails = railsOf(node);
    if (node.gpus.empty() || rails.empty()) {
      continue;
    }
    if (!pairsStated(node)) {
      pairAll(node, rails);
      continue;
    }
    for (const size_t rail : rails) {
      if (node.nics[rail].gpus.empty()) {
        node.nics[rail].idle = "its description gives it no GPU";
      }
    }
  }
}

double nicBytesPerSecond(const Nic& nic) {
  return nic.speedMbps > 0 ? static_cast<double>(nic.speedMbps) * kBytesPerMegabit : 0;
}

}  // namespace peal

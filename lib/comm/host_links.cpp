#include "lib/comm/host_links.h"

#include <algorithm>

#include "lib/base/config.h"
#include "lib/bootstrap/socket.h"
#include "lib/comm/routed.h"
#include "transports/network/vote.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"
#include "transports/ucx/ucx.h"
#include "transports/verbs/verbs.h"

namespace peal {
namespace {

// The ranks of this rank's node among themselves. Each meeting is one of all ranks of the communicator, so
// all nodes use theirs equally often: connectShm, on every rank, also on one that is alone on its node.
class NodeExchange final : public Exchange {
 public:
  NodeExchange(Exchange& all, const Grouping& grouping)
      : all_(all), grouping_(grouping), node_(grouping.node(all.rank())) {}
  int rank() const override { return grouping_.local(all_.rank()); }
  int size() const override { return grouping_.nodeSize(node_); }

  Result<std::vector<std::vector<std::byte>>> allGather(const std::vector<std::byte>& mine) override {
    Result<std::vector<std::vector<std::byte>>> blobs = all_.allGather(mine);
    if (!blobs) {
      return blobs;
    }
    std::vector<std::vector<std::byte>> ours;
    for (int local = 0; local < size(); ++local) {
      ours.push_back(std::move((*blobs)[static_cast<size_t>(grouping_.rank(node_, local))]));
    }
    return ours;
  }

 private:
  Exchange& all_;
  const Grouping& grouping_;
  const int node_;
};

// What TCP and UCX do best with, of PEAL_SLOTS and PEAL_SLOT_BYTES (docs/NETWORKS.md).
constexpr int kTcpSlotsFactor = 2, kUcxSlotsFactor = 1;
constexpr size_t kTcpBytesFactor = 4, kUcxBytesFactor = 2;

// UCX is told of interfaces by name.
Result<std::unique_ptr<Fabric>> openUcxOnInterfaces(const FabricOptions& options) {
  UcxOptions ucx;
  if (const std::string& pattern = configuration()->text(Knob::Interface); !pattern.empty()) {
    const Result<std::vector<InterfaceAddress>> all = localAddresses();
    if (!all) {
      return all.error();
    }
    const Result<std::vector<InterfaceAddress>> selected = selectInterfaces(*all, pattern);
    if (!selected) {
      return selected.error();
    }
    for (const InterfaceAddress& one : *selected) {
      if (std::find(ucx.interfaces.begin(), ucx.interfaces.end(), one.interface) == ucx.interfaces.end()) {
        ucx.interfaces.push_back(one.interface);
      }
    }
  }
  return openUcx(enlarged(options, kUcxSlotsFactor, kUcxBytesFactor), ucx);
}

Result<std::unique_ptr<Fabric>> openLargeTcp(const FabricOptions& options) {
  return openTcpWith(enlarged(options, kTcpSlotsFactor, kTcpBytesFactor),
                     configuration()->text(Knob::TcpCongestion));
}

}  // namespace

Result<std::unique_ptr<Endpoint>> connectNode(Exchange& exchange, const Secret& secret,
                                              const Grouping& grouping, const HostLinkOptions& options) {
  ShmOptions shm{.slotBytes = options.slotBytes,
                 .slots = options.slots,
                 .directRead = options.directRead,
                 .deadline = options.deadline};
  if (grouping.nodes == 1) {
    return connectShm(exchange, secret, shm);
  }
  const int node = grouping.node(exchange.rank());
  for (int local = 0; local < grouping.nodeSize(node); ++local) {
    shm.ranks.push_back(grouping.rank(node, local));
  }
  shm.size = exchange.size();
  NodeExchange ours(exchange, grouping);
  Result<std::unique_ptr<Endpoint>> endpoint = connectShm(ours, secret, shm);
  PEAL_TRY(agree(exchange, endpoint ? Result<void>() : Result<void>(endpoint.error())));
  return endpoint;
}

Result<std::unique_ptr<NetworkEndpoint>> connectNodes(Exchange& exchange, const Secret& secret,
                                                      const Grouping& grouping,
                                                      const HostLinkOptions& options) {
  NetworkOptions network{.fabric = {.slotBytes = options.slotBytes,
                                    .slots = options.slots,
                                    .ranksApart = grouping.nodes == exchange.size()},
                         .peers = {},
                         .interfaces = options.interfaces,
                         .deadline = options.deadline};
  for (int rank = 0; rank < exchange.size(); ++rank) {
    if (!grouping.sameNode(rank, exchange.rank())) {
      network.peers.push_back(rank);
    }
  }
  return connectNetwork(exchange, secret, options.fabrics, network);
}

Result<std::unique_ptr<Endpoint>> connectHosts(Exchange& exchange, const Secret& secret,
                                               const Grouping& grouping, const HostLinkOptions& options) {
  Result<std::unique_ptr<Endpoint>> local = connectNode(exchange, secret, grouping, options);
  if (!local || grouping.nodes == 1) {
    return local;
  }
  Result<std::unique_ptr<NetworkEndpoint>> remote = connectNodes(exchange, secret, grouping, options);
  if (!remote) {
    return remote.error();
  }
  if (grouping.nodeSize(grouping.node(exchange.rank())) == 1) {
    return std::unique_ptr<Endpoint>(std::move(*remote));
  }
  std::vector<int> localOf;
  for (int rank = 0; rank < exchange.size(); ++rank) {
    localOf.push_back(grouping.sameNode(rank, exchange.rank()) ? grouping.local(rank) : -1);
  }
  return std::unique_ptr<Endpoint>(std::make_unique<RoutedEndpoint>(exchange.rank(), std::move(localOf),
                                                                    std::move(*local), std::move(*remote)));
}

std::vector<FabricCandidate> configuredFabrics() {
  const std::vector<FabricCandidate> all{
      {"verbs", openVerbs}, {"tcp", openLargeTcp}, {"ucx", openUcxOnInterfaces}};
  const std::string& wanted = configuration()->text(Knob::Transport);
  std::vector<FabricCandidate> allowed;
  for (const FabricCandidate& one : all) {
    if (wanted == "auto" || wanted == one.name) {
      allowed.push_back(one);
    }
  }
  return allowed;
}

ExpectedNetwork expectedNetwork(const FabricOptions& options) {
  for (const FabricCandidate& candidate : configuredFabrics()) {
    if (const Result<std::unique_ptr<Fabric>> opened = candidate.open(options)) {
      return {candidate.name, (*opened)->slotBytes(options.slotBytes), (*opened)->burst()};
    }
  }
  return {.name = {}, .slotBytes = options.slotBytes};
}

}  // namespace peal

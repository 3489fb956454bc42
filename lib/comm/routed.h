// The links of a rank that has peers on its own node and on others: shared memory to the former, a network to
// the latter. Knows no wire; chooses by rank and puts the two endpoints' health and sleep together.
//
// Made by connectHosts (host_links.h). Ranks are the communicator's; the shared-memory endpoint counts those
// of the node, but speaks of them by the communicator's numbers.
#pragma once
#include <memory>
#include <vector>

#include "transports/network/network.h"

namespace peal {

class RoutedEndpoint final : public Endpoint {
 public:
  // localOf: of each rank its number in `local`, or -1: then `network` leads to it.
  RoutedEndpoint(int rank, std::vector<int> localOf, std::unique_ptr<Endpoint> local,
                 std::unique_ptr<NetworkEndpoint> network);

  const char* name() const override { return "shm and a network"; }
  size_t slotBytes() const override { return slotBytes_; }
  Link& link(int peerRank) override { return *links_.at(static_cast<size_t>(peerRank)); }
  std::byte* tryStageAll(size_t bytes) override;
  void postAll(size_t bytes, const Digest& digest) override;
  void poll() override { network_->poll(); }
  bool needsPoll() const override { return true; }
  bool settled() override { return network_->settled(); }
  Result<void> progress(int waitingForRank) override;
  bool faulted() const override { return local_->faulted() || network_->faulted(); }
  bool readWithdrawn() const override { return local_->readWithdrawn(); }
  int culpritRank() const override;
  void announce(const Digest& digest, bool inside) override;
  PeerState peerState(int peerRank) override;
  uint32_t prepareSleep() override;
  void sleep(uint32_t token, int64_t us) override;
  void cancelSleep() override;
  void wake() override { local_->wake(); }
  void farewell(int culpritRank, const std::string& reason) override;
  int withdraw(int64_t timeoutMs) override {
    network_->withdraw(timeoutMs);
    return local_->withdraw(timeoutMs);
  }

 private:
  int localOf(int rank) const { return localOf_[static_cast<size_t>(rank)]; }

  const std::vector<int> localOf_;
  std::unique_ptr<Endpoint> local_;
  // Destroyed first: its thread wakes sleepers of local_.
  std::unique_ptr<NetworkEndpoint> network_;
  std::vector<Link*> links_;  // by rank
  size_t slotBytes_;
  bool wakesUs_;  // the network ends sleeps on local_'s bell
  const Endpoint* faultyFirst_ = nullptr;
  std::byte* stagedLocal_ = nullptr;  // what tryStageAll() got
  std::byte* stagedNetwork_ = nullptr;
};

}  // namespace peal

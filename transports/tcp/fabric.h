// The fabric over TCP: a connection per peer on another node, in one communicator.
//
// Made by openTcp(); owned by the network endpoint.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transports/tcp/link.h"

namespace peal::tcp {

class TcpFabric final : public Fabric {
 public:
  TcpFabric(const FabricOptions& options, std::string congestion);
  // Says to the peers that it leaves, and gives them a second to take what was sent.
  ~TcpFabric() override;
  TcpFabric(const TcpFabric&) = delete;
  TcpFabric& operator=(const TcpFabric&) = delete;

  const char* name() const override { return "tcp"; }
  size_t slotBytes(size_t /*asked*/) const override { return station_.options.slotBytes; }
  int burst() const override { return station_.burst; }
  bool copiesReferences() const override { return true; }
  Result<void> connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane& control,
                       Deadline deadline) override;
  Link& link(int peerRank) override { return *byRank_[static_cast<size_t>(peerRank)]; }
  void poll() override;
  bool settled() override;
  void withdraw() override;
  const std::optional<FabricFault>& fault() const override { return station_.faults.first(); }
  void excuse(int peerRank) override;
  bool isOver(int peerRank) const override;
  void onControl(int /*peerRank*/, std::span<const std::byte> /*message*/) override {}
  int eventDescriptor() const override { return station_.epoll.get(); }
  bool arm() override;

 private:
  Result<void> checkCards(const std::vector<std::vector<std::byte>>& cards) const;
  Result<void> makeLinks(std::vector<PeerSocket> sockets, size_t ranks);
  void leave();
  bool areFew() const;
  void watch(size_t index, uint32_t events);

  void useCongestion(int descriptor);

  Station station_;
  const std::string congestion_;
  bool isConnected_ = false;
  std::vector<std::unique_ptr<TcpLink>> links_;
  std::vector<uint32_t> watched_;  // by links_: of which events station_.epoll tells
  bool isArmed_ = false;           // and whether somebody may sleep by it
  std::vector<TcpLink*> byRank_;   // nullptr: not a peer
};

}  // namespace peal::tcp

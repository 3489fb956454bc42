// The fabric over UCX: one worker, one link per peer on another node, in one communicator.
//
// Made by openUcx(); owned by the network endpoint. connect.cpp has the meeting of the ranks.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transports/ucx/link.h"
#include "transports/ucx/worker.h"

namespace peal::ucx {

class UcxFabric final : public Fabric {
 public:
  static Result<std::unique_ptr<Fabric>> open(const Library& library, const FabricOptions& options,
                                              const UcxOptions& ucxOptions);
  // Says to the peers that it leaves, and gives them a second to take what was sent.
  ~UcxFabric() override;
  UcxFabric(const UcxFabric&) = delete;
  UcxFabric& operator=(const UcxFabric&) = delete;

  const char* name() const override { return "ucx"; }
  Result<void> connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane& control,
                       Deadline deadline) override;
  Link& link(int peerRank) override { return *byRank_[static_cast<size_t>(peerRank)]; }
  void poll() override { station_.progress(); }
  bool settled() override { return station_.isSettled(); }
  void withdraw() override;
  const std::optional<FabricFault>& fault() const override { return station_.faults.first(); }
  void excuse(int peerRank) override;
  void onControl(int /*peerRank*/, std::span<const std::byte> /*message*/) override {}
  int eventDescriptor() const override { return worker_->descriptor(); }
  bool arm() override;

 private:
  UcxFabric(std::unique_ptr<Worker> worker, const FabricOptions& options);

  // connect.cpp
  Result<void> setHandler();
  Result<std::vector<Card>> exchangeCards(Exchange& exchange, const Card& mine) const;
  Result<void> makeLinks(const std::vector<Card>& cards, const std::vector<int>& peers);
  Result<void> makeEndpoint(UcxLink& link, const Card& card);
  Result<void> greet(const std::vector<Card>& cards, Deadline deadline);

  static ucs_status_t onMessage(void* fabric, const void* header, size_t headerBytes, void* data,
                                size_t bytes, const ucp_am_recv_param_t* param);
  static void onEndpointError(void* link, ucp_ep_h endpoint, ucs_status_t status);

  void leave();
  void closeEndpoints();

  Station station_;
  bool isConnected_ = false;
  bool metStranger_ = false;
  std::vector<std::unique_ptr<UcxLink>> links_;
  std::vector<UcxLink*> byRank_;  // nullptr: not a peer
  // Ends first: what UCX has not finished by then calls back into the links.
  const std::unique_ptr<Worker> worker_;
};

}  // namespace peal::ucx

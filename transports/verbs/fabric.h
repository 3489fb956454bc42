// The verbs fabric: devices, links, and one loop over completions. See transports/fabric.h for what it owes.
//
// Owned by the network endpoint. Teardown: what was sent is waited for (two seconds at most, less if nobody
// answers), peers are told, then links (queue pairs), registrations, devices.
#pragma once
#include <memory>
#include <vector>

#include "transports/verbs/link.h"
#include "transports/verbs/station.h"

namespace peal::verbs {

class VerbsFabric final : public Fabric {
 public:
  // Opens the devices that the options select; the error says why there is none.
  static Result<std::unique_ptr<Fabric>> open(Library& library, const Options& options);
  ~VerbsFabric() override;
  VerbsFabric(const VerbsFabric&) = delete;
  VerbsFabric& operator=(const VerbsFabric&) = delete;

  const char* name() const override { return "verbs"; }
  Result<void> connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane& control,
                       Deadline deadline) override;
  Link& link(int peerRank) override { return *links_[linkOfRank_.at(static_cast<size_t>(peerRank))]; }
  bool mayReachGpus() const override { return true; }
  Result<std::vector<std::byte>> reachGpu(const GpuMemory& memory) override;
  void leaveGpu() override { station_.gpu = {}; }
  Result<void> peerGpu(int peerRank, const std::vector<std::byte>& keys) override;
  void poll() override;
  bool settled() override;
  const std::optional<FabricFault>& fault() const override { return station_.faults.first(); }
  void excuse(int peerRank) override;
  bool isOver(int peerRank) const override {
    return links_[linkOfRank_[static_cast<size_t>(peerRank)]]->isOver();
  }
  void onControl(int peerRank, std::span<const std::byte> message) override;
  int eventDescriptor() const override { return events_; }
  bool arm() override;

 private:
  explicit VerbsFabric(const Options& options) { station_.options = options; }
  // Handles what the completion queues hold. False: nothing was there.
  bool takeCompletions();
  void watch();
  void flush();

  Station station_;
  std::vector<std::unique_ptr<VerbsLink>> links_;
  std::vector<size_t> linkOfRank_;
  int events_ = -1;  // an epoll of the devices' completion channels
  bool armed_ = false;
  int turns_ = 0;  // of poll() since the clock was read for watch()
  Clock::time_point watchedAt_{};
};

}  // namespace peal::verbs

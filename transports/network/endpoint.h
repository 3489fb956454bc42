// One rank's end of the network: the links of its fabric, and the health of the ranks on other nodes.
//
// Made by connectNetwork. Teardown, in this order: farewell (if none was said), links, fabric (its links may
// use the control plane), control connections, bell. Safe when peers are dead: nothing waits for them.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/forkwatch.h"
#include "transports/fault_box.h"
#include "transports/network/link.h"
#include "transports/network/mesh.h"
#include "transports/network/network.h"

namespace peal::network {

class Network final : public NetworkEndpoint, private ForkListener {
 public:
  // `fabric` is connected to the mesh's peers.
  Network(int rank, int size, const NetworkOptions& options, std::unique_ptr<Bell> bell,
          std::unique_ptr<Mesh> mesh, std::unique_ptr<Fabric> fabric);
  ~Network() override;

  const char* name() const override { return fabric_->name(); }
  size_t slotBytes() const override { return slotBytes_; }
  int burst() const override { return fabric_->burst(); }
  bool copiesReferences() const override { return fabric_->copiesReferences(); }
  bool mayReachGpus() const override { return fabric_->mayReachGpus(); }
  Result<std::vector<std::byte>> reachGpu(const GpuMemory& memory) override {
    return fabric_->reachGpu(memory);
  }
  void leaveGpu() override { fabric_->leaveGpu(); }
  Result<void> peerGpu(int peerRank, const std::vector<std::byte>& keys) override {
    return fabric_->peerGpu(peerRank, keys);
  }
  Link& link(int peerRank) override { return *links_.at(static_cast<size_t>(peerRank)); }
  std::byte* tryStageAll(size_t bytes) override;
  void postAll(size_t bytes, const Digest& digest) override;
  void poll() override;
  bool needsPoll() const override { return true; }
  bool settled() override { return inChild_.load(std::memory_order_relaxed) || fabric_->settled(); }
  Result<void> progress(int waitingForRank) override;
  bool faulted() const override {
    return fault_.raised() || mesh_->grave() || fabric_->fault() || inChild_.load(std::memory_order_relaxed);
  }
  int culpritRank() const override { return fault_.raised() ? fault_.culpritRank() : -1; }
  void announce(const Digest& digest, bool inside) override;
  PeerState peerState(int peerRank) override;
  uint32_t prepareSleep() override;
  void sleep(uint32_t token, int64_t us) override;
  void cancelSleep() override {}
  void wake() override { bell_->ring(); }
  void farewell(int culpritRank, const std::string& reason) override;
  int withdraw(int64_t timeoutMs) override;
  bool sleepElsewhere(std::function<void()> wake) override;
  bool pending() const override { return pending_; }

 private:
  void inForkedChild() noexcept override;
  void judge(int waitingForRank);
  void judgeFabric();
  bool leftInNeed(int peerRank, int waitingForRank);
  CountedLink& counted(int peerRank) const { return *links_[static_cast<size_t>(peerRank)]; }
  Departure& departure(int peerRank) { return departures_[static_cast<size_t>(peerRank)]; }

  // Destroyed from the last to the first.
  const int rank_;
  const pid_t pid_;  // a forked child has another one
  const std::vector<int> peers_;
  const size_t slotBytes_;
  FaultBox fault_;
  std::unique_ptr<Bell> bell_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Fabric> fabric_;
  std::vector<std::unique_ptr<CountedLink>> links_;  // by rank; none to ranks of this node
  std::vector<std::byte*> staged_;                   // by peers_: what tryStageAll() got
  std::vector<std::byte> alone_;                     // what goes to all, where there is nobody

  // What the caller's thread has taken note of.
  std::vector<Departure> departures_;
  // Of a peer that has left in good order.
  struct End {
    bool cut = false;                     // its link has failed since: nothing more comes
    bool complete = false;                // all had come, before the caller last looked at the link
    std::optional<Deadline> lastCredits;  // all messages have come: so long may the credits take
  };
  std::vector<End> ends_;  // by rank
  uint32_t newsSeen_ = 0;
  std::optional<Deadline> patience_;  // of a fabric's fault: a death or a farewell may explain it

  bool pending_ = false;
  bool elsewhere_ = false;
  std::atomic<bool> farewellSaid_{false};
  std::atomic<bool> inChild_{false};  // set in a forked child, where nothing else happens at that time
};

}  // namespace peal::network

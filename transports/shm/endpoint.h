// One rank's end of the shared-memory transport: its links, and the health of its peers.
//
// Made by connectShm, used by executors through Endpoint. Teardown, in this order: farewell (if none was
// said), links (they use everything below), sockets, views of peers' segments, the own segment. Safe when
// peers are dead: nothing waits for them.
#pragma once
#include <poll.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/forkwatch.h"
#include "transports/shm/connect.h"
#include "transports/shm/link.h"

namespace peal::shm {

class ShmEndpoint final : public Endpoint, private ForkListener {
 public:
  ShmEndpoint(Membership membership, const Layout& layout, const ShmOptions& options);
  ~ShmEndpoint() override;

  const char* name() const override { return "shm"; }
  size_t slotBytes() const override { return station_.layout.slotBytes(); }
  bool reachesAll() const override;
  Link& link(int peerRank) override { return *links_.at(static_cast<size_t>(peerRank)); }
  std::byte* tryStageAll(size_t bytes) override;
  void postAll(size_t bytes, const Digest& digest) override;
  Result<void> progress(int waitingForRank) override;
  bool faulted() const override {
    return station_.fault.raised() || inChild_.load(std::memory_order_relaxed);
  }
  bool readWithdrawn() const override { return station_.readWithdrawn; }
  int culpritRank() const override { return station_.fault.raised() ? station_.fault.culpritRank() : -1; }
  void announce(const Digest& digest, bool inside) override;
  PeerState peerState(int peerRank) override;
  uint32_t prepareSleep() override;
  void sleep(uint32_t token, int64_t us) override;
  void cancelSleep() override;
  void wake() override;
  void farewell(int culpritRank, const std::string& reason) override;
  int withdraw(int64_t timeoutMs) override;

 private:
  // What is known of a peer's end.
  struct Departure {
    bool ended = false;     // its socket has ended
    bool farewell = false;  // it said why it leaves
    bool settled = false;   // it had, before the caller last looked at its links
    int culpritRank = -1;
    std::string reason;
  };

  void inForkedChild() noexcept override;
  std::byte* allSlot() const;
  void readSockets();
  bool readSocket(int peerRank);
  void handle(int peerRank, Packet& packet);
  void judge(int waitingForRank);
  bool leftInNeed(int peerRank, int waitingForRank);
  std::string nameOf(int peerRank) const;
  std::string nameOfNumber(int number) const;
  Bell& bell() const { return membership_.segment->shared().bell(); }
  template <class Action>
  void forEachPeer(const Action& action) {
    for (int rank = 0; rank < station_.layout.size(); ++rank) {
      if (rank != station_.rank) {
        action(rank);
      }
    }
  }

  // Destroyed from the last to the first.
  Membership membership_;
  Station station_;
  const pid_t pid_;  // a forked child has another one
  std::vector<Departure> departures_;
  std::vector<pollfd> pollEntries_;              // by rank; kept to spare an allocation per call
  std::vector<std::unique_ptr<ShmLink>> links_;  // by rank; none to itself
  std::atomic<bool> farewellSaid_{false};
  std::atomic<bool> inChild_{false};  // set in a forked child, where nothing else happens at that time

  // Staging for all peers: the slot that comes next. It is free when every link has credit, because every
  // use of it took one credit of every link, and `slots` uses lie between two uses of one slot.
  uint32_t allSlot_ = 0;
  bool allInline_ = false;
  bool fences_ = false;  // as in any of the links
  alignas(kLine) InlineBytes inline_{};
};

}  // namespace peal::shm

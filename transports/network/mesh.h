// The control connections of one rank, served by a thread of their own: it learns at once that a peer leaves
// or dies, and answers what this rank is doing even while the rank computes. It sleeps unless something
// comes; nothing of it is on the path of a message.
//
// Owned by the network endpoint. Every member function may be called from any thread, unless it says
// otherwise. Must never touch the fabric: what comes for it waits for takeMail().
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/bootstrap/wire.h"
#include "transports/fabric.h"
#include "transports/network/bell.h"
#include "transports/network/meeting.h"
#include "transports/network/message.h"

namespace peal::network {

// What is known of a peer's end.
struct Departure {
  bool ended = false;  // its connection has ended
  std::string how;     // the reason that the system gave
  std::optional<Farewell> farewell;
};

// A message for the fabric.
struct Mail {
  int peerRank = -1;
  Bytes message;
};

class Mesh final : public ControlPlane {
 public:
  // How the same ranks meet once more (meetPeers), for connections().
  using Meet =
      std::function<Result<std::vector<Connection>>(Exchange&, const std::vector<int>& peers, Deadline)>;

  Mesh(int size, std::vector<Connection> connections, Bell& bell, Meet meetAgain = {});
  // Gives a farewell that is still on its way a moment, and ends the thread.
  ~Mesh() override;
  // Starts serving. An error: no thread, or no descriptors.
  Result<void> start();

  void send(int peerRank, std::span<const std::byte> message) override;
  Result<std::vector<PeerSocket>> connections(Exchange& exchange, const std::vector<int>& peers,
                                              Deadline deadline) override;
  bool haveMail() const { return haveMail_.load(std::memory_order_acquire); }  // pairs with take()
  std::vector<Mail> takeMail();

  void announce(const Digest& digest, bool inside);
  PeerState ownState();
  // What is known by now. Asks again if that is old, so that later calls know more.
  PeerState peerState(int peerRank);

  // Rises with every change of a departure. Whoever sees it sees the change in departures().
  uint32_t news() const { return news_.load(std::memory_order_acquire); }
  // By rank.
  std::vector<Departure> departures();
  // A peer died, or left because of a fault.
  bool grave() const { return grave_.load(std::memory_order_acquire); }

  // `counts`: of each peer what the farewell says of the link to it.
  template <class Counts>
  void farewell(int culpritRank, const std::string& reason, const Counts& counts);

  // Until that descriptor is readable, once: then rings the bell.
  void watch(int descriptor);

  // In a forked child, where the thread does not exist.
  void closeInChild() noexcept;

 private:
  struct Peer {
    explicit Peer(Connection connection);
    const int rank;
    Socket socket;
    FrameWriter writer;
    FrameReader reader;
    Bytes unsent;
    bool full = false;  // the connection takes no more: the thread waits until it does
    Departure departure;
    PeerState state;
    bool asking = false;  // an answer is due
    Clock::time_point asked{};
    size_t mailWaiting = 0;
  };

  void serve();
  // All below with mutex_ held.
  void sendFrame(Peer& peer, Kind kind, ByteView body);
  void flush(Peer& peer);
  void receive(Peer& peer);
  bool take(Peer& peer, const Frame& frame);
  void end(Peer& peer, std::string how);

  Bell& bell_;
  const Meet meetAgain_;
  std::mutex mutex_;                          // guards all below that is no atomic
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; nullptr: none
  std::deque<Mail> mail_;
  PeerState own_;
  bool stopping_ = false;
  bool watching_ = false;
  std::atomic<bool> haveMail_{false};
  std::atomic<bool> grave_{false};
  std::atomic<uint32_t> news_{0};
  Socket epoll_;
  Socket stop_;       // an eventfd: the thread ends
  int watched_ = -1;  // in epoll_
  std::unique_ptr<std::thread> thread_;
};

template <class Counts>
void Mesh::farewell(int culpritRank, const std::string& reason, const Counts& counts) {
  const std::lock_guard lock(mutex_);
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer) {
      Farewell farewell = counts(peer->rank);
      farewell.culpritRank = culpritRank;
      farewell.reason = reason;
      sendFrame(*peer, Kind::Farewell, encode(farewell));
    }
  }
}

}  // namespace peal::network

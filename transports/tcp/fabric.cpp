#include "transports/tcp/fabric.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "lib/base/log.h"
#include "transports/tcp/congestion.h"
#include "transports/tcp/tcp.h"

namespace peal::tcp {
namespace {

// How long a fabric that ends waits for peers to take its last messages.
constexpr int kLeaveMs = 1000;
// And how long a rank that has failed waits for peers to take what is in its caller's memory.
constexpr int kWithdrawMs = 50;
constexpr size_t kFewLinks = 2;
constexpr size_t kBurstMostBytes = 512 << 10;
constexpr size_t kEventsMost = 32;

// A rank's card: what must be the same everywhere.
struct Card {
  uint64_t version = 2;
  uint64_t slotBytes = 0;
  uint64_t slots = 0;
};

std::vector<std::byte> pack(const Card& card) {
  std::vector<std::byte> bytes(sizeof card);
  std::memcpy(bytes.data(), &card, sizeof card);
  return bytes;
}

// An operation ends when the system has taken what was posted, so its memory should hold all slots of a link:
// asked for where the system grants it; elsewhere it grows the memory by need.
void tuneSocket(int descriptor, const FabricOptions& options) {
  const auto set = [&](int level, int option, int value) {
    // Best effort: without it messages are right, and slower.
    static_cast<void>(setsockopt(descriptor, level, option, &value, sizeof value));
  };
  const size_t wanted = static_cast<size_t>(options.slots) * (options.slotBytes + 4096);
  size_t granted = 0;
  std::ifstream("/proc/sys/net/core/wmem_max") >> granted;
  if (wanted <= granted) {
    set(SOL_SOCKET, SO_SNDBUF, static_cast<int>(wanted));
  }
  // A peer that computes for long may leave data unread: that is no death. Those are the control connections'
  // to find out.
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
}

}  // namespace

TcpFabric::TcpFabric(const FabricOptions& options, std::string congestion)
    : congestion_(std::move(congestion)) {
  station_.options = options;
  const auto most = static_cast<int>(std::max<size_t>(1, kBurstMostBytes / station_.options.slotBytes));
  station_.burst = options.ranksApart ? std::clamp(station_.options.slots / 2, 1, most) : 1;
}

TcpFabric::~TcpFabric() {
  if (isConnected_ && !station_.faults.first()) {
    leave();
  }
}

Result<void> TcpFabric::connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane& control,
                                Deadline deadline) {
  station_.rank = exchange.rank();
  const Result<std::vector<std::vector<std::byte>>> cards = exchange.allGather(pack(
      {.slotBytes = station_.options.slotBytes, .slots = static_cast<uint64_t>(station_.options.slots)}));
  if (!cards) {
    return cards.error();
  }
  PEAL_TRY(checkCards(*cards));  // all ranks see the same cards
  Result<std::vector<PeerSocket>> sockets = control.connections(exchange, peers, deadline);
  if (!sockets) {
    return sockets.error();
  }
  PEAL_TRY(makeLinks(std::move(*sockets), cards->size()));
  isConnected_ = true;
  return {};
}

Result<void> TcpFabric::checkCards(const std::vector<std::vector<std::byte>>& cards) const {
  Card first;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    Card card;
    if (cards[rank].size() != sizeof card) {
      return Error{pealRemoteError,
                   fmt::format("rank {}'s card for TCP is not one of this version of peal. All "
                               "ranks must run the same version.",
                               rank)};
    }
    std::memcpy(&card, cards[rank].data(), sizeof card);
    first = rank == 0 ? card : first;
    if (card.version != first.version || card.slotBytes != first.slotBytes || card.slots != first.slots) {
      return Error{pealInvalidUsage,
                   fmt::format("rank 0 has {} slots of {} bytes, rank {} has {} of {}. PEAL_SLOTS and "
                               "PEAL_SLOT_BYTES must be the same on all ranks.",
                               first.slots, first.slotBytes, rank, card.slots, card.slotBytes)};
    }
  }
  return {};
}

Result<void> TcpFabric::makeLinks(std::vector<PeerSocket> sockets, size_t ranks) {
  byRank_.assign(ranks, nullptr);
  watched_.assign(sockets.size(), sockets.size() <= kFewLinks ? 0U : EPOLLIN);
  station_.epoll = OwnedFd(epoll_create1(EPOLL_CLOEXEC));
  for (PeerSocket& socket : sockets) {
    tuneSocket(socket.socket.get(), station_.options);
    useCongestion(socket.socket.get());
    epoll_event event{};
    event.events = watched_[links_.size()];
    event.data.u64 = links_.size();
    if (epoll_ctl(station_.epoll.get(), EPOLL_CTL_ADD, socket.socket.get(), &event) != 0) {
      return systemError(fmt::format("epoll for the connection to rank {}", socket.peerRank), errno);
    }
    const auto peer = static_cast<size_t>(socket.peerRank);
    Result<std::unique_ptr<TcpLink>> link = TcpLink::make(station_, std::move(socket));
    if (!link) {
      return link.error();
    }
    links_.push_back(std::move(*link));
    byRank_[peer] = links_.back().get();
  }
  return {};
}

bool TcpFabric::settled() {
  if (station_.waiting > 0) {
    for (const std::unique_ptr<TcpLink>& link : links_) {
      link->flush();
    }
  }
  return station_.waiting == 0;
}

void TcpFabric::useCongestion(int descriptor) {
  const std::string wanted = congestionFor(descriptor, congestion_);
  if (!wanted.empty() &&
      setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, wanted.data(),
                 static_cast<socklen_t>(wanted.size())) != 0 &&
      congestion_ != kAutoCongestion) {
    std::string allowed;
    std::ifstream file("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    std::getline(file, allowed);
    log(LogLevel::Warn, fmt::format("rank {}: the system refuses PEAL_TCP_CONGESTION={} ({}) and keeps its "
                                    "own. It allows everybody: {}",
                                    station_.rank, congestion_, std::strerror(errno), allowed));
  }
}

// Few connections are read in turn; of more the system is asked which have something.
bool TcpFabric::areFew() const { return links_.size() <= kFewLinks; }

void TcpFabric::watch(size_t index, uint32_t events) {
  if (watched_[index] != events && !links_[index]->isDead()) {
    watched_[index] = events;
    epoll_event event{};
    event.events = events;
    event.data.u64 = index;
    epoll_ctl(station_.epoll.get(), EPOLL_CTL_MOD, links_[index]->descriptor(), &event);
  }
}

void TcpFabric::poll() {
  // Nobody sleeps any more: telling would be work for whoever sends.
  if (std::exchange(isArmed_, false) && areFew()) {
    for (size_t i = 0; i < links_.size(); ++i) {
      watch(i, 0);
    }
  }
  if (station_.waiting > 0 || areFew()) {
    for (const std::unique_ptr<TcpLink>& link : links_) {
      if (!link->isDead()) {
        link->pump(TcpLink::Extent::NextMessage);
      }
    }
    return;
  }
  std::array<epoll_event, kEventsMost> events;
  const int ready = epoll_wait(station_.epoll.get(), events.data(), events.size(), 0);
  for (int i = 0; i < ready; ++i) {
    links_[events[static_cast<size_t>(i)].data.u64]->pump(TcpLink::Extent::NextMessage);
  }
}

// The descriptor tells of what the system has, so nothing that came may stay there.
bool TcpFabric::arm() {
  isArmed_ = true;
  for (size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i]->isDead()) {
      links_[i]->pump(TcpLink::Extent::All);
    }
    watch(i, links_[i]->isWaiting() ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  return true;
}

// Peers that are alive take the bytes soon.
void TcpFabric::withdraw() {
  const Deadline deadline = Deadline::afterMs(kWithdrawMs);
  const auto isUsing = [](const std::unique_ptr<TcpLink>& link) { return link->usesCallersMemory(); };
  while (std::any_of(links_.begin(), links_.end(), isUsing) && !deadline.passed()) {
    for (const std::unique_ptr<TcpLink>& link : links_) {
      if (!link->isDead()) {
        link->pump(TcpLink::Extent::NextMessage);
      }
    }
    std::this_thread::yield();
  }
  for (const std::unique_ptr<TcpLink>& link : links_) {
    link->withdraw();
  }
}

void TcpFabric::excuse(int peerRank) {
  station_.faults.excuse(peerRank);
  byRank_[static_cast<size_t>(peerRank)]->excuse();
}

bool TcpFabric::isOver(int peerRank) const {
  const TcpLink& link = *byRank_[static_cast<size_t>(peerRank)];
  return link.isDead() && link.isLeft();
}

// Peers that have all messages of this rank lose nothing when its connections end; one that is busy elsewhere
// finds them in its system's memory, if that has room for them.
void TcpFabric::leave() {
  const Deadline deadline = Deadline::afterMs(kLeaveMs);
  for (const std::unique_ptr<TcpLink>& link : links_) {
    link->sayLeaving();
  }
  const auto isDone = [](const std::unique_ptr<TcpLink>& link) {
    return link->isDead() || link->isLeft() || link->allReleased();
  };
  while (!(settled() && std::all_of(links_.begin(), links_.end(), isDone)) && !deadline.passed()) {
    for (const std::unique_ptr<TcpLink>& link : links_) {
      if (!link->isDead()) {
        link->pump(TcpLink::Extent::All);
      }
    }
    std::this_thread::yield();
  }
}

}  // namespace peal::tcp

namespace peal {

Result<std::unique_ptr<Fabric>> openTcp(const FabricOptions& options) { return openTcpWith(options, ""); }

Result<std::unique_ptr<Fabric>> openTcpWith(const FabricOptions& options, const std::string& congestion) {
  return std::unique_ptr<Fabric>(std::make_unique<tcp::TcpFabric>(options, congestion));
}

}  // namespace peal

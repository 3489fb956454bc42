#include "transports/network/mesh.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace peal::network {
namespace {

// Between two questions to one peer. A wait asks every millisecond; the answers serve sentences.
constexpr std::chrono::milliseconds kAskEvery{50};
constexpr std::chrono::milliseconds kLastWords{300};  // for a farewell whose connection is full
constexpr size_t kMailMost = 1024;                    // of one peer, not yet taken
constexpr size_t kUnsentMostBytes = 1 << 20;          // to one peer, when it still asks for more
constexpr int kReadsMost = 16;  // of one connection before others, and callers, get a turn
constexpr uint64_t kStopTag = UINT64_MAX;
constexpr uint64_t kWatchTag = UINT64_MAX - 1;

epoll_event eventFor(uint32_t events, uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  return event;
}

}  // namespace

Mesh::Peer::Peer(Connection connection)
    : rank(connection.peerRank),
      socket(std::move(connection.socket)),
      writer(connection.sendKey),
      reader(connection.receiveKey, kBodyMostBytes) {}

Mesh::Mesh(int size, std::vector<Connection> connections, Bell& bell, Meet meetAgain)
    : bell_(bell), meetAgain_(std::move(meetAgain)), peers_(static_cast<size_t>(size)) {
  for (Connection& connection : connections) {
    const auto rank = static_cast<size_t>(connection.peerRank);
    peers_[rank] = std::make_unique<Peer>(std::move(connection));
  }
}

Result<void> Mesh::start() {
  epoll_ = Socket(epoll_create1(EPOLL_CLOEXEC));
  stop_ = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (epoll_.fd() < 0 || stop_.fd() < 0 || !bell_.works()) {
    const int errnum = errno;
    return Error{pealSystemError,
                 fmt::format("the control connections need three descriptors more: {}", errnoText(errnum))};
  }
  epoll_event stop = eventFor(EPOLLIN, kStopTag);
  epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, stop_.fd(), &stop);
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer) {
      epoll_event event = eventFor(EPOLLIN, static_cast<uint64_t>(peer->rank));
      if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, peer->socket.fd(), &event) != 0) {
        return Error{pealSystemError, fmt::format("epoll_ctl for the control connection to rank {}: {}",
                                                  peer->rank, errnoText(errno))};
      }
    }
  }
  // The application's signals are not for this thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::string refusal;
  try {
    thread_ = std::make_unique<std::thread>([this] { serve(); });
  } catch (const std::system_error& failure) {
    refusal = failure.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!refusal.empty()) {
    return Error{pealSystemError, fmt::format("the thread that serves the control connections did not start: "
                                              "{}. Raise the limit on processes (ulimit -u).",
                                              refusal)};
  }
  return {};
}

Result<std::vector<PeerSocket>> Mesh::connections(Exchange& exchange, const std::vector<int>& peers,
                                                  Deadline deadline) {
  if (!meetAgain_) {
    return ControlPlane::connections(exchange, peers, deadline);
  }
  Result<std::vector<Connection>> met = meetAgain_(exchange, peers, deadline);
  if (!met) {
    return met.error();
  }
  std::vector<PeerSocket> sockets;
  for (Connection& connection : *met) {
    sockets.push_back({connection.peerRank, OwnedFd(connection.socket.release())});
  }
  return sockets;
}

Mesh::~Mesh() {
  if (thread_ == nullptr) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  static_cast<void>(eventfd_write(stop_.fd(), 1));
  thread_->join();
}

void Mesh::closeInChild() noexcept {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer) {
      peer->socket.close();
    }
  }
  epoll_.close();
  stop_.close();
  static_cast<void>(thread_.release());  // it runs in the parent only
}

// ---- the thread ----

void Mesh::serve() {
  pthread_setname_np(pthread_self(), "peal-control");
  std::array<epoll_event, 16> events;
  std::optional<Deadline> last;
  for (;;) {
    const int count =
        epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), last ? last->leftMs() : -1);
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.u64 == kWatchTag) {
        watching_ = false;
        bell_.ring();
      } else if (event.data.u64 != kStopTag) {
        Peer& peer = *peers_[event.data.u64];
        if ((event.events & EPOLLOUT) != 0 && !peer.departure.ended) {
          flush(peer);
        }
        if ((event.events & ~EPOLLOUT) != 0) {
          receive(peer);
        }
      }
    }
    if (!stopping_) {
      continue;
    }
    if (!last) {
      last = Deadline::afterMs(kLastWords.count());
      epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, stop_.fd(), nullptr);
    }
    const bool said = std::all_of(peers_.begin(), peers_.end(), [](const std::unique_ptr<Peer>& peer) {
      return !peer || peer->departure.ended || peer->unsent.empty();
    });
    if (said || last->passed()) {
      return;
    }
  }
}

void Mesh::receive(Peer& peer) {
  std::array<std::byte, 8192> buffer;
  // What is left makes the descriptor readable again.
  for (int reads = 0; reads < kReadsMost && !peer.departure.ended; ++reads) {
    const ssize_t got = ::recv(peer.socket.fd(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    }
    if (got <= 0) {
      end(peer, got == 0 ? "" : errnoText(errno));
      return;
    }
    peer.reader.feed(ByteView(buffer).first(static_cast<size_t>(got)));
    for (;;) {
      const Result<std::optional<Frame>> frame = peer.reader.next();
      if (!frame) {
        end(peer, frame.error().message);
        return;
      }
      if (!*frame) {
        break;
      }
      if (!take(peer, **frame)) {
        end(peer, "it sent a control message that makes no sense");
        return;
      }
    }
  }
}

bool Mesh::take(Peer& peer, const Frame& frame) {
  switch (static_cast<Kind>(frame.type)) {
    case Kind::StateRequest:
      if (peer.unsent.size() > kUnsentMostBytes) {
        return false;  // it asks on and on, and reads no answer
      }
      sendFrame(peer, Kind::State, encode(own_));
      return true;
    case Kind::State: {
      const std::optional<PeerState> state = decodeState(frame.body);
      if (state) {
        peer.state = *state;
        peer.asking = false;
      }
      return state.has_value();
    }
    case Kind::Farewell: {
      std::optional<Farewell> farewell = decodeFarewell(frame.body);
      if (!farewell || farewell->culpritRank < -1 ||
          farewell->culpritRank >= static_cast<int>(peers_.size())) {
        return false;
      }
      const bool fault = farewell->culpritRank >= 0;
      if (!peer.departure.farewell) {
        peer.departure.farewell = std::move(farewell);
      }
      news_.fetch_add(1, std::memory_order_release);
      if (fault) {
        grave_.store(true, std::memory_order_release);
      }
      bell_.ring();
      return true;
    }
    case Kind::Fabric:
      if (++peer.mailWaiting > kMailMost) {
        return false;
      }
      mail_.push_back({peer.rank, frame.body});
      haveMail_.store(true, std::memory_order_release);
      bell_.ring();
      return true;
  }
  return false;
}

void Mesh::end(Peer& peer, std::string how) {
  peer.departure.ended = true;
  peer.departure.how = std::move(how);
  peer.unsent.clear();
  epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, peer.socket.fd(), nullptr);
  peer.socket.close();
  news_.fetch_add(1, std::memory_order_release);
  if (!peer.departure.farewell) {
    grave_.store(true, std::memory_order_release);
  }
  bell_.ring();
}

// ---- sending ----

void Mesh::sendFrame(Peer& peer, Kind kind, ByteView body) {
  if (peer.departure.ended) {
    return;
  }
  append(peer.unsent, peer.writer.frame(static_cast<FrameType>(kind), body));
  flush(peer);
}

void Mesh::flush(Peer& peer) {
  size_t sent = 0;
  while (sent < peer.unsent.size()) {
    const ssize_t went =
        ::send(peer.socket.fd(), peer.unsent.data() + sent, peer.unsent.size() - sent, MSG_NOSIGNAL);
    if (went < 0 && errno == EINTR) {
      continue;
    }
    if (went < 0) {
      break;  // full; or at its end, which reading tells
    }
    sent += static_cast<size_t>(went);
  }
  peer.unsent.erase(peer.unsent.begin(), peer.unsent.begin() + static_cast<std::ptrdiff_t>(sent));
  if (const bool full = !peer.unsent.empty(); full != peer.full) {
    peer.full = full;
    epoll_event event = eventFor(full ? EPOLLIN | EPOLLOUT : EPOLLIN, static_cast<uint64_t>(peer.rank));
    epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, peer.socket.fd(), &event);
  }
}

void Mesh::send(int peerRank, std::span<const std::byte> message) {
  const std::lock_guard lock(mutex_);
  if (Peer* peer = peers_.at(static_cast<size_t>(peerRank)).get(); peer != nullptr) {
    sendFrame(*peer, Kind::Fabric, message.first(std::min(message.size(), kFabricMessageMostBytes)));
  }
}

std::vector<Mail> Mesh::takeMail() {
  const std::lock_guard lock(mutex_);
  std::vector<Mail> taken(std::make_move_iterator(mail_.begin()), std::make_move_iterator(mail_.end()));
  mail_.clear();
  haveMail_.store(false, std::memory_order_relaxed);
  for (const Mail& mail : taken) {
    peers_[static_cast<size_t>(mail.peerRank)]->mailWaiting = 0;
  }
  return taken;
}

// ---- what ranks are doing ----

void Mesh::announce(const Digest& digest, bool inside) {
  const std::lock_guard lock(mutex_);
  own_ = {digest, inside, true};
}

PeerState Mesh::ownState() {
  const std::lock_guard lock(mutex_);
  return own_;
}

PeerState Mesh::peerState(int peerRank) {
  const std::lock_guard lock(mutex_);
  Peer* const peer = peers_.at(static_cast<size_t>(peerRank)).get();
  if (peer == nullptr) {
    return {};
  }
  if (const auto now = Clock::now(); !peer->asking && now - peer->asked >= kAskEvery) {
    peer->asking = true;
    peer->asked = now;
    sendFrame(*peer, Kind::StateRequest, {});
  }
  return peer->state;
}

std::vector<Departure> Mesh::departures() {
  const std::lock_guard lock(mutex_);
  std::vector<Departure> all(peers_.size());
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank]) {
      all[rank] = peers_[rank]->departure;
    }
  }
  return all;
}

// ---- sleeping elsewhere ----

void Mesh::watch(int descriptor) {
  const std::lock_guard lock(mutex_);
  if (watching_ && watched_ == descriptor) {
    return;
  }
  epoll_event event = eventFor(EPOLLIN | EPOLLONESHOT, kWatchTag);
  const int action = watched_ == descriptor ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  watched_ = descriptor;
  watching_ = epoll_ctl(epoll_.fd(), action, descriptor, &event) == 0;
}

}  // namespace peal::network

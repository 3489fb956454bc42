#include "transports/network/endpoint.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>

namespace peal::network {
namespace {

// No sleep is longer: a peer's host may vanish without an event.
constexpr int64_t kMaxSleepUs = 100000;
// With a fabric that cannot wake us.
constexpr int64_t kBlindSleepUs = 100;
// A link that fails because its peer died or left is better explained by the control connection, which may
// tell a moment later.
constexpr int kPatienceMs = 500;

}  // namespace

bool CountedLink::outOfOrder(uint32_t number) const {
  const auto due = static_cast<uint32_t>(taken());
  fault_.raise(peerRank_,
               {pealInternalError,
                fmt::format("rank {} received message {} of rank {}, where message {} is due: the network {}",
                            rank_, number, peerRank_, due,
                            static_cast<int32_t>(number - due) < 0 ? "brought one twice" : "lost some")});
  return false;
}

Network::Network(int rank, int size, const NetworkOptions& options, std::unique_ptr<Bell> bell,
                 std::unique_ptr<Mesh> mesh, std::unique_ptr<Fabric> fabric)
    : rank_(rank),
      pid_(getpid()),
      peers_(options.peers),
      slotBytes_(fabric->slotBytes(options.fabric.slotBytes)),
      bell_(std::move(bell)),
      mesh_(std::move(mesh)),
      fabric_(std::move(fabric)),
      links_(static_cast<size_t>(size)),
      staged_(options.peers.size()),
      departures_(static_cast<size_t>(size)),
      ends_(static_cast<size_t>(size)) {
  for (const int peer : peers_) {
    links_[static_cast<size_t>(peer)] =
        std::make_unique<CountedLink>(fabric_->link(peer), inChild_, rank_, peer, fault_);
  }
  if (peers_.empty()) {
    alone_.resize(slotBytes_);
  }
  watchForks(*this);
}

Network::~Network() {
  unwatchForks(*this);
  if (getpid() != pid_) {
    // A forked child must not speak for its parent, nor undo what the two share.
    static_cast<void>(fabric_.release());
    return;
  }
  if (fault_.raised()) {
    farewell(fault_.culpritRank(), fault_.error().message);
  } else {
    farewell(-1, "");
  }
}

void Network::inForkedChild() noexcept {
  mesh_->closeInChild();
  bell_->closeInChild();
  inChild_.store(true, std::memory_order_relaxed);
}

// ---- the same bytes to all: written into the first link's slot and copied to the others' ----

std::byte* Network::tryStageAll(size_t bytes) {
  for (size_t i = 0; i < peers_.size(); ++i) {
    staged_[i] = counted(peers_[i]).tryStage(bytes);
    if (staged_[i] == nullptr) {
      return nullptr;
    }
  }
  return peers_.empty() ? alone_.data() : staged_.front();
}

void Network::postAll(size_t bytes, const Digest& digest) {
  // The first last: a posted slot is no longer this rank's to read.
  for (size_t i = peers_.size(); i-- > 0;) {
    if (i > 0 && bytes > 0) {
      std::memcpy(staged_[i], staged_.front(), bytes);
    }
    counted(peers_[i]).post(bytes, digest);
  }
}

// ---- progress and health ----

void Network::poll() {
  if (inChild_.load(std::memory_order_relaxed)) {
    return;  // what a child reads, its parent does not get
  }
  fabric_->poll();
  if (mesh_->haveMail()) {
    for (const Mail& mail : mesh_->takeMail()) {
      fabric_->onControl(mail.peerRank, mail.message);
    }
  }
}

Result<void> Network::progress(int waitingForRank) {
  if (getpid() != pid_) {
    return Error{
        pealInvalidUsage,
        fmt::format("rank {} belongs to process {}; its forked child {} cannot use the communicator. "
                    "Make one after the fork.",
                    rank_, pid_, getpid())};
  }
  if (!fault_.raised()) {
    poll();
    if (const uint32_t news = mesh_->news(); news != newsSeen_) {
      newsSeen_ = news;
      departures_ = mesh_->departures();
    }
    judge(waitingForRank);
  }
  return fault_.raised() ? Result<void>{fault_.error()} : Result<void>{};
}

// The dead first: they are the cause of what others say. Then those that left because of a fault, then links
// that fail by themselves.
void Network::judge(int waitingForRank) {
  for (const int peer : peers_) {
    if (const Departure& gone = departure(peer); gone.ended && !gone.farewell) {
      fault_.raise(peer, {pealRemoteError,
                          fmt::format("rank {} died: its control connection ended without a farewell{}{}.",
                                      peer, gone.how.empty() ? "" : ": ", gone.how)});
    }
  }
  for (const int peer : peers_) {
    const Departure& gone = departure(peer);
    if (!gone.farewell || gone.farewell->culpritRank < 0) {
      continue;
    }
    const int culprit = gone.farewell->culpritRank;
    const std::string cause = culprit == rank_  ? fmt::format("this rank ({})", rank_)
                              : culprit == peer ? std::string("itself")
                                                : fmt::format("rank {}", culprit);
    fault_.raise(culprit, {pealRemoteError, fmt::format("rank {} left because of {}: {}", peer, cause,
                                                        gone.farewell->reason)});
  }
  judgeFabric();
  for (const int peer : peers_) {
    if (leftInNeed(peer, waitingForRank)) {
      fault_.raise(peer, {pealRemoteError,
                          fmt::format("rank {} left the communicator in good order while rank {} still waits "
                                      "for it. Do all ranks make the same calls?",
                                      peer, rank_)});
    }
  }
}

void Network::judgeFabric() {
  // An excused fault may have stood before another one.
  while (fabric_->fault() && fabric_->fault()->peerRank >= 0 &&
         departure(fabric_->fault()->peerRank).farewell) {
    const int peer = fabric_->fault()->peerRank;
    ends_[static_cast<size_t>(peer)].cut = true;
    fabric_->excuse(peer);
    patience_.reset();
  }
  if (!fabric_->fault()) {
    return;
  }
  const FabricFault& fault = *fabric_->fault();
  if (!patience_) {
    patience_ = Deadline::afterMs(fault.peerRank >= 0 ? kPatienceMs : 0);
  }
  if (patience_->passed()) {
    fault_.raise(fault.peerRank >= 0 ? fault.peerRank : rank_, fault.error);
  }
}

// Whether that peer left in good order although the caller still needs it. Its farewell says how many
// messages it posted and released; those that are still on their way come. A caller that has looked at the
// link since all had come, and waits still, waits in vain.
bool Network::leftInNeed(int peerRank, int waitingForRank) {
  const std::optional<Farewell>& farewell = departure(peerRank).farewell;
  if (!farewell) {
    return false;
  }
  CountedLink& link = counted(peerRank);
  const bool unreleased = link.sent() > farewell->released;
  if (unreleased && (waitingForRank == kAnybody || waitingForRank == peerRank)) {
    return true;
  }
  End& end = ends_[static_cast<size_t>(peerRank)];
  const bool allTaken = link.taken() >= farewell->posted;
  if (allTaken && !end.lastCredits) {
    end.lastCredits = Deadline::afterMs(kPatienceMs);
  }
  // Its link has failed since, or has been silent: what has not come by now does not come.
  const bool cut = end.cut || fabric_->isOver(peerRank) || (end.lastCredits && end.lastCredits->passed());
  const bool wasComplete = end.complete;
  Arrival arrival;
  end.complete = (allTaken && (cut || link.released(link.sent()))) || (cut && !link.tryReceive(arrival));
  return wasComplete && end.complete && waitingForRank == peerRank;
}

// In a forked child the connections' lock may be held by a thread that is not there.
void Network::announce(const Digest& digest, bool inside) {
  if (!inChild_.load(std::memory_order_relaxed)) {
    mesh_->announce(digest, inside);
  }
}

PeerState Network::peerState(int peerRank) {
  if (inChild_.load(std::memory_order_relaxed)) {
    return {};
  }
  return peerRank == rank_ ? mesh_->ownState() : mesh_->peerState(peerRank);
}

// ---- sleeping ----

uint32_t Network::prepareSleep() {
  const uint32_t token = bell_->count();
  if (inChild_.load(std::memory_order_relaxed)) {
    pending_ = true;
    return token;
  }
  pending_ = !fabric_->arm() || mesh_->haveMail();
  if (elsewhere_ && !pending_) {
    mesh_->watch(fabric_->eventDescriptor());
  }
  return token;
}

void Network::sleep(uint32_t token, int64_t us) {
  if (pending_ || bell_->count() != token) {
    return;
  }
  const int wire = fabric_->eventDescriptor();
  const int64_t longest = wire >= 0 ? kMaxSleepUs : kBlindSleepUs;
  us = std::clamp<int64_t>(us, 0, longest);
  const timespec limit{us / 1000000, us % 1000000 * 1000};
  std::array<pollfd, 2> entries{{{bell_->descriptor(), POLLIN, 0}, {wire, POLLIN, 0}}};
  if (ppoll(entries.data(), entries.size(), &limit, nullptr) > 0 && entries[0].revents != 0) {
    bell_->quiet();
  }
}

bool Network::sleepElsewhere(std::function<void()> wake) {
  bell_->alsoCall(std::move(wake));
  elsewhere_ = fabric_->eventDescriptor() >= 0;
  return elsewhere_;
}

// ---- leaving ----

void Network::farewell(int culpritRank, const std::string& reason) {
  if (farewellSaid_.exchange(true) || inChild_.load(std::memory_order_relaxed)) {
    return;
  }
  mesh_->farewell(culpritRank, reason, [this](int peer) {
    return Farewell{-1, counted(peer).sent(), counted(peer).taken(), {}};
  });
}

int Network::withdraw(int64_t /*timeoutMs*/) {
  if (!inChild_.load(std::memory_order_relaxed)) {
    fabric_->withdraw();
  }
  return -1;
}

}  // namespace peal::network

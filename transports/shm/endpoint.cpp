#include "transports/shm/endpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "lib/base/clock.h"
#include "transports/shm/bell.h"

namespace peal::shm {
namespace {

// No sleep is longer: a peer that dies cannot ring, and must be noticed by the caller's next progress().
constexpr int64_t kMaxSleepUs = 100000;

// How long a failed rank waits for another process that is writing what it lent: that takes a few
// milliseconds if the process runs at all.
constexpr int64_t kForeignWriterMs = 50;

// Read from one socket at a time. More than fit into its queue, so that a region's file is always found.
constexpr int kMaxPackets = 4096;

}  // namespace

ShmEndpoint::ShmEndpoint(Membership membership, const Layout& layout, const ShmOptions& options)
    : membership_(std::move(membership)),
      station_{membership_.rank, layout, options.directRead, {}, options.size, {}, {}},
      pid_(getpid()),
      departures_(static_cast<size_t>(layout.size())),
      pollEntries_(static_cast<size_t>(layout.size())),
      links_(static_cast<size_t>(layout.size())) {
  for (int rank = 0; rank < layout.size(); ++rank) {
    station_.numbers.push_back(options.numberOf(rank));
    station_.numbersMost = std::max(station_.numbersMost, station_.numbers.back() + 1);
  }
  std::vector<int> sockets;
  for (const Peer& peer : membership_.peers) {
    sockets.push_back(peer.socket.get());
  }
  station_.regions.setSockets(std::move(sockets));
  forEachPeer([this](int rank) {
    const auto index = static_cast<size_t>(rank);
    links_[index] = std::make_unique<ShmLink>(station_, rank, membership_.peers[index], *membership_.segment,
                                              [this, rank] { return readSocket(rank); });
    fences_ |= links_[index]->fences();
  });
  watchForks(*this);
}

ShmEndpoint::~ShmEndpoint() {
  unwatchForks(*this);
  if (getpid() != pid_) {
    return;  // a forked child must not speak for its parent
  }
  if (station_.fault.raised()) {
    farewell(station_.fault.culpritRank(), station_.fault.error().message);
  } else {
    farewell(-1, "");
  }
}

bool ShmEndpoint::reachesAll() const {
  return station_.directRead &&
         std::all_of(links_.begin(), links_.end(), [](const std::unique_ptr<ShmLink>& link) {
           return link == nullptr || link->reachesBothWays();
         });
}

// ---- the same bytes to all ----

std::byte* ShmEndpoint::tryStageAll(size_t bytes) {
  if (!station_.fits(bytes)) {
    return nullptr;
  }
  for (const std::unique_ptr<ShmLink>& link : links_) {
    if (link && !link->hasCredit()) {
      return nullptr;
    }
  }
  allInline_ = bytes <= kInlineBytes;
  return allInline_ ? inline_.data() : allSlot();
}

std::byte* ShmEndpoint::allSlot() const {
  return membership_.segment->staging.base() + station_.layout.stagingOffset(station_.rank) +
         size_t{allSlot_} * slotBytes();
}

void ShmEndpoint::postAll(size_t bytes, const Digest& digest) {
  if (!station_.fits(bytes, allInline_)) {
    return;
  }
  for (const std::unique_ptr<ShmLink>& link : links_) {
    if (link && allInline_) {
      link->publishInline(inline_, bytes, digest);
    } else if (link) {
      link->publishStagedAll(allSlot_, bytes, digest);
    }
  }
  allSlot_ = allSlot_ + 1 == station_.layout.slots() ? 0 : allSlot_ + 1;
  fenceForSlowSide(!fences_);
  for (const std::unique_ptr<ShmLink>& link : links_) {
    if (link) {
      link->wakeIfAsleep();
      link->fetchNext();
    }
  }
  // While this rank waits for the others. For a single peer that is far away it is filled past the caches.
  const bool isStreamed = links_.size() == 2 && links_[static_cast<size_t>(1 - station_.rank)]->isFar();
  if (!allInline_ && !isStreamed) {
    fetchSlot(allSlot(), bytes);
  }
}

// ---- health ----

void ShmEndpoint::inForkedChild() noexcept {
  for (Peer& peer : membership_.peers) {
    peer.socket.reset();
  }
  for (const std::unique_ptr<ShmLink>& link : links_) {
    if (link) {
      link->closeInChild();
    }
  }
  station_.regions.forgetSockets();
  inChild_.store(true, std::memory_order_relaxed);
}

Result<void> ShmEndpoint::progress(int waitingForRank) {
  if (getpid() != pid_) {
    return Error{pealInvalidUsage,
                 fmt::format("rank {} belongs to process {}; its forked child {} cannot use "
                             "the communicator. Make one after the fork.",
                             station_.numberOf(station_.rank), pid_, getpid())};
  }
  if (!station_.fault.raised()) {
    readSockets();
    station_.regions.dropEnded();
    judge(waitingForRank);
  }
  return station_.fault.raised() ? Result<void>{station_.fault.error()} : Result<void>{};
}

void ShmEndpoint::readSockets() {
  for (size_t rank = 0; rank < departures_.size(); ++rank) {
    // A negative descriptor is skipped by poll.
    pollEntries_[rank] = {departures_[rank].ended ? -1 : membership_.peers[rank].socket.get(), POLLIN, 0};
  }
  if (::poll(pollEntries_.data(), pollEntries_.size(), 0) <= 0) {
    return;
  }
  forEachPeer([this](int rank) {
    if (pollEntries_[static_cast<size_t>(rank)].revents != 0) {
      readSocket(rank);
    }
  });
}

// False: the socket has ended. Reads a bounded number of packets, so that no peer can keep this rank here.
bool ShmEndpoint::readSocket(int peerRank) {
  const auto index = static_cast<size_t>(peerRank);
  Departure& departure = departures_[index];
  Packet packet;
  for (int count = 0; count < kMaxPackets && !departure.ended; ++count) {
    switch (receivePacket(membership_.peers[index].socket.get(), packet)) {
      case Got::Nothing:
        return true;
      case Got::End:
        departure.ended = true;
        break;
      case Got::Packet:
        handle(peerRank, packet);
    }
  }
  return !departure.ended;
}

void ShmEndpoint::handle(int peerRank, Packet& packet) {
  ShmLink& link = *links_[static_cast<size_t>(peerRank)];
  const auto refuse = [&](const std::string& what) {
    station_.fault.raise(station_.numberOf(peerRank),
                         {pealRemoteError, fmt::format("{} sent something wrong over its socket: {}",
                                                       nameOf(peerRank), what)});
  };
  if (packet.note() == Note::Farewell && packet.as<FarewellNote>() != nullptr) {
    const FarewellNote& note = *packet.as<FarewellNote>();
    Departure& departure = departures_[static_cast<size_t>(peerRank)];
    const bool known = note.culpritRank >= -1 && note.culpritRank < station_.numbersMost;
    departure.farewell = true;
    departure.culpritRank = known ? note.culpritRank : station_.numberOf(peerRank);
    departure.reason = note.text();
  } else if (packet.fileLost) {
    const int self = station_.numberOf(station_.rank);
    station_.fault.raise(
        self,
        systemError(fmt::format("rank {} could not take a buffer of {}", self, nameOf(peerRank)), EMFILE));
  } else if (packet.note() == Note::RegionBegins && packet.as<RegionNote>() != nullptr && packet.file) {
    const RegionNote& note = *packet.as<RegionNote>();
    const Result<void> begun = link.beginRegion(note.id, note.bytes, packet.file.get());
    if (!begun) {
      refuse(begun.error().message);
    }
  } else if (packet.note() == Note::RegionEnds && packet.as<RegionNote>() != nullptr) {
    link.endRegion(packet.as<RegionNote>()->id);
  } else {
    refuse(fmt::format("a note of kind {} with {} bytes", static_cast<uint32_t>(packet.note()), packet.size));
  }
}

// The dead first: they are the cause of what others say. Then those that left because of a fault.
void ShmEndpoint::judge(int waitingForRank) {
  forEachPeer([this](int rank) {
    const Departure& departure = departures_[static_cast<size_t>(rank)];
    if (departure.ended && !departure.farewell) {
      station_.fault.raise(
          station_.numberOf(rank),
          {pealRemoteError, fmt::format("{} died: its socket closed without a farewell.", nameOf(rank))});
    }
  });
  forEachPeer([this](int rank) {
    const Departure& departure = departures_[static_cast<size_t>(rank)];
    if (!departure.farewell || departure.culpritRank < 0) {
      return;
    }
    std::string cause = nameOfNumber(departure.culpritRank);
    if (departure.culpritRank == station_.numberOf(station_.rank)) {
      cause = fmt::format("this rank ({})", departure.culpritRank);
    } else if (departure.culpritRank == station_.numberOf(rank)) {
      cause = "itself";
    }
    station_.fault.raise(
        departure.culpritRank,
        {pealRemoteError, fmt::format("{} left because of {}: {}", nameOf(rank), cause, departure.reason)});
  });
  forEachPeer([this, waitingForRank](int rank) {
    if (leftInNeed(rank, waitingForRank)) {
      station_.fault.raise(
          station_.numberOf(rank),
          {pealRemoteError, fmt::format("{} left the communicator in good order while rank {} still waits "
                                        "for it. Do all ranks make the same calls?",
                                        nameOf(rank), station_.numberOf(station_.rank))});
    }
    Departure& departure = departures_[static_cast<size_t>(rank)];
    departure.settled = departure.farewell;
  });
}

// Whether that peer left in good order although the caller still needs it. Its farewell came after its last
// message and its last release; a caller that has looked at the link since then, and waits still, waits in
// vain.
bool ShmEndpoint::leftInNeed(int peerRank, int waitingForRank) {
  if (!departures_[static_cast<size_t>(peerRank)].settled) {
    return false;
  }
  ShmLink& link = *links_[static_cast<size_t>(peerRank)];
  if (waitingForRank == kAnybody) {
    return link.hasUnreleased();
  }
  return waitingForRank == peerRank && (link.hasUnreleased() || !link.hasArrival());
}

std::string ShmEndpoint::nameOf(int peerRank) const {
  const pid_t pid = membership_.peers[static_cast<size_t>(peerRank)].pid;
  const int number = station_.numberOf(peerRank);
  return pid > 0 && pid != pid_ ? fmt::format("rank {} (pid {})", number, pid)
                                : fmt::format("rank {}", number);
}

// Of any rank of the communicator, here or on another node.
std::string ShmEndpoint::nameOfNumber(int number) const {
  const auto at = std::find(station_.numbers.begin(), station_.numbers.end(), number);
  return at == station_.numbers.end() ? fmt::format("rank {}", number)
                                      : nameOf(static_cast<int>(at - station_.numbers.begin()));
}

// What a rank announces and sleeps on lies in memory that a forked child shares with it.
void ShmEndpoint::announce(const Digest& digest, bool inside) {
  if (inChild_.load(std::memory_order_relaxed)) [[unlikely]] {
    return;
  }
  membership_.segment->shared().announcement().write(digest, inside);
}

PeerState ShmEndpoint::peerState(int peerRank) {
  return peerRank == station_.rank ? membership_.segment->shared().announcement().read()
                                   : links_.at(static_cast<size_t>(peerRank))->peerState();
}

// ---- sleeping ----

uint32_t ShmEndpoint::prepareSleep() {
  const uint32_t token = bell().doorbell.load(std::memory_order_acquire);
  if (inChild_.load(std::memory_order_relaxed)) {
    return token - 1;  // nobody wakes it, so it does not sleep
  }
  bell().sleeping.store(1, std::memory_order_relaxed);
  fenceAll();  // pairs with the fence of whoever posts or releases (layout.h, Bell)
  return token;
}

void ShmEndpoint::sleep(uint32_t token, int64_t us) {
  sleepOnBell(bell(), token, std::clamp<int64_t>(us, 0, kMaxSleepUs));
  cancelSleep();
}

void ShmEndpoint::cancelSleep() {
  if (!inChild_.load(std::memory_order_relaxed)) {
    bell().sleeping.store(0, std::memory_order_relaxed);
  }
}

void ShmEndpoint::wake() { ringBell(bell()); }

// ---- leaving ----

void ShmEndpoint::farewell(int culpritRank, const std::string& reason) {
  if (getpid() != pid_ || farewellSaid_.exchange(true)) {
    return;  // a forked child must not speak for its parent, nor tell what that has released
  }
  const FarewellNote note = FarewellNote::make(culpritRank, reason);
  forEachPeer([&](int rank) {
    const auto index = static_cast<size_t>(rank);
    if (culpritRank < 0) {
      links_[index]->tellReleased();
    }
    // A peer that is gone, or that has not read for so long that its socket is full, sees the end instead.
    sendPacket(membership_.peers[index].socket.get(), &note, sizeof note, -1);
    links_[index]->ringPeer();
  });
}

// The farewell was sent before, so whoever holds this rank's memory and waits for somebody else gives up
// soon.
int ShmEndpoint::withdraw(int64_t timeoutMs) {
  if (getpid() != pid_) {
    return -1;
  }
  forEachPeer([this](int rank) { links_[static_cast<size_t>(rank)]->letGo(); });
  membership_.segment->shared().withdrawal().done.store(1, std::memory_order_relaxed);
  fullFence();  // pairs with the one in ShmLink::mayUse (layout.h, Withdrawal)
  const Deadline patience = Deadline::afterMs(timeoutMs);
  const Deadline forOthers = Deadline::afterMs(std::min(timeoutMs, kForeignWriterMs));
  int late = -1;
  forEachPeer([&](int rank) {
    const ShmLink& link = *links_[static_cast<size_t>(rank)];
    const Deadline& deadline = link.inSameProcess() ? patience : forOthers;
    while (link.isUsedByPeer() && (link.inSameProcess() || link.hasLent())) {
      if (deadline.passed()) {
        late = link.inSameProcess() ? station_.numberOf(rank) : late;
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return late;
}

}  // namespace peal::shm

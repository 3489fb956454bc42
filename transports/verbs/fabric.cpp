#include "transports/verbs/fabric.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "transports/verbs/connect.h"

namespace peal::verbs {
namespace {

constexpr int kFlushMs = 2000;
// A peer that is dead acknowledges nothing; one that lives, sooner, or a packet is lost for the second time.
constexpr int kFlushSilenceMs = 300;
constexpr int kBatch = 16;
// Completions taken in one poll(), so that links get their turn.
constexpr int kMostBatches = 8;
// Calls of poll() for which the clock need not be read.
constexpr int kTurnsPerWatch = 64;

}  // namespace

Result<std::unique_ptr<Fabric>> VerbsFabric::open(Library& library, const Options& options) {
  if (options.fabric.slots < 1 || options.fabric.slots > 64) {
    return Error{pealInvalidArgument, fmt::format("verbs takes 1 to 64 slots, not {}", options.fabric.slots)};
  }
  Result<Inventory> inventory = takeInventory(library, options);
  if (!inventory) {
    return inventory.error();
  }
  if (inventory->rails.empty()) {
    return Error{pealSystemError, fmt::format("verbs has no port to use: {}.", explain(inventory->ports))};
  }
  std::unique_ptr<VerbsFabric> fabric(new VerbsFabric(options));
  fabric->station_.devices = std::move(inventory->devices);
  fabric->station_.rails = std::move(inventory->rails);
  return std::unique_ptr<Fabric>(std::move(fabric));
}

Result<void> VerbsFabric::connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane& control,
                                  Deadline deadline) {
  station_.rank = exchange.rank();
  station_.control = &control;
  events_ = epoll_create1(EPOLL_CLOEXEC);
  linkOfRank_.assign(static_cast<size_t>(exchange.size()), 0);
  for (size_t i = 0; i < peers.size(); ++i) {
    linkOfRank_[static_cast<size_t>(peers[i])] = i;
  }
  Connector connector(station_, links_, exchange, deadline, [this] { takeCompletions(); });
  PEAL_TRY(connector.run(peers));
  for (const std::unique_ptr<Device>& device : station_.devices) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (events_ >= 0) {
      epoll_ctl(events_, EPOLL_CTL_ADD, device->channel()->fd, &event);
    }
  }
  return {};
}

// A key for each port, in the order of this rank's list.
Result<std::vector<std::byte>> VerbsFabric::reachGpu(const GpuMemory& memory) {
  Result<ReachedMemory> reached = ReachedMemory::make(station_.devices, memory);
  if (!reached) {
    return reached.error();
  }
  station_.gpu = std::move(*reached);
  std::vector<std::byte> keys(station_.rails.size() * sizeof(uint32_t));
  for (size_t i = 0; i < station_.rails.size(); ++i) {
    const uint32_t key = station_.gpu.keyForPeers(*station_.rails[i].device);
    std::memcpy(keys.data() + i * sizeof key, &key, sizeof key);
  }
  return keys;
}

Result<void> VerbsFabric::peerGpu(int peerRank, const std::vector<std::byte>& keys) {
  for (Lane& lane : links_[linkOfRank_.at(static_cast<size_t>(peerRank))]->lanes()) {
    if (keys.size() / sizeof(uint32_t) <= lane.peerPort) {
      return Error{pealRemoteError,
                   fmt::format("rank {} gives keys of its GPU's memory for {} ports, and has more", peerRank,
                               keys.size() / sizeof(uint32_t))};
    }
    std::memcpy(&lane.peerGpuKey, keys.data() + lane.peerPort * sizeof(uint32_t), sizeof(uint32_t));
  }
  return {};
}

bool VerbsFabric::takeCompletions() {
  bool any = false;
  for (const std::unique_ptr<Device>& device : station_.devices) {
    if (device->cq() == nullptr) {
      continue;
    }
    std::array<ibv_wc, kBatch> batch;
    for (int round = 0; round < kMostBatches; ++round) {
      const int count = device->library().pollCq(device->cq(), kBatch, batch.data());
      if (count < 0) {
        station_.raise(station_.rank, {pealSystemError,
                                       fmt::format("ibv_poll_cq on {} failed: the device or its driver is in "
                                                   "disorder (dmesg)",
                                                   device->name())});
        return any;
      }
      any = any || count > 0;
      for (int i = 0; i < count; ++i) {
        const WorkOwner owner = WorkOwner::of(batch[static_cast<size_t>(i)].wr_id);
        if (owner.link < links_.size()) {
          links_[owner.link]->onCompletion(owner, batch[static_cast<size_t>(i)]);
        }
      }
      if (count < kBatch) {
        break;
      }
    }
  }
  return any;
}

void VerbsFabric::watch() {
  const std::chrono::milliseconds limit(station_.options.silenceLimitMs);
  const Clock::time_point now = Clock::now();
  turns_ = 0;
  if (now - watchedAt_ < limit / 8) {
    return;
  }
  for (const std::unique_ptr<VerbsLink>& link : links_) {
    link->watch(now, now - watchedAt_ > limit / 2);
  }
  watchedAt_ = now;
}

void VerbsFabric::poll() {
  bool clock = ++turns_ >= kTurnsPerWatch;
  if (armed_) {
    armed_ = false;
    clock = true;  // after a sleep
    for (const std::unique_ptr<Device>& device : station_.devices) {
      device->drainEvents();
    }
  }
  takeCompletions();
  if (!station_.pending.empty()) {
    // A link that is pumped may put itself in again only if it has left.
    std::vector<VerbsLink*> turn;
    turn.swap(station_.pending);
    for (VerbsLink* link : turn) {
      if (link->pump()) {
        station_.pending.push_back(link);
      }
    }
  }
  if (clock) {
    watch();
  }
  station_.registrations.dropEnded();
}

bool VerbsFabric::settled() {
  return station_.unacknowledged == 0 && std::all_of(station_.pending.begin(), station_.pending.end(),
                                                     [](const VerbsLink* link) { return link->settled(); });
}

void VerbsFabric::onControl(int peerRank, std::span<const std::byte> message) {
  Note note;
  const bool known = peerRank >= 0 && static_cast<size_t>(peerRank) < linkOfRank_.size() && !links_.empty() &&
                     links_[linkOfRank_[static_cast<size_t>(peerRank)]]->peerRank() == peerRank;
  if (message.size() == sizeof note) {
    std::memcpy(&note, message.data(), sizeof note);
  }
  if (!known || message.size() != sizeof note || note.magic != Note::kMagic) {
    station_.raise(peerRank,
                   {pealRemoteError, fmt::format("rank {} received a note of {} bytes of rank {} that verbs "
                                                 "does not know",
                                                 station_.rank, message.size(), peerRank)});
    return;
  }
  links_[linkOfRank_[static_cast<size_t>(peerRank)]]->onNote(note);
}

void VerbsFabric::excuse(int peerRank) {
  station_.faults.excuse(peerRank);
  links_[linkOfRank_[static_cast<size_t>(peerRank)]]->onBye();
}

bool VerbsFabric::arm() {
  armed_ = true;
  for (const std::unique_ptr<Device>& device : station_.devices) {
    if (device->library().reqNotifyCq(device->cq()) != 0) {
      return false;  // then nothing would wake the sleeper
    }
  }
  // What came before the request raises no event.
  return !takeCompletions();
}

// Queue pairs that are destroyed take along what is still on its way.
void VerbsFabric::flush() {
  const Deadline deadline = Deadline::afterMs(kFlushMs);
  Deadline silence = Deadline::afterMs(kFlushSilenceMs);
  for (;;) {
    if (takeCompletions()) {
      silence = Deadline::afterMs(kFlushSilenceMs);
    }
    poll();
    bool done = true;
    for (const std::unique_ptr<VerbsLink>& link : links_) {
      done = link->flushed() && done;
    }
    if (done || deadline.passed() || silence.passed()) {
      return;
    }
    std::this_thread::yield();
  }
}

VerbsFabric::~VerbsFabric() {
  if (!links_.empty() && links_.front()->isOpen()) {
    flush();
    for (const std::unique_ptr<VerbsLink>& link : links_) {
      link->sendBye();
    }
  }
  links_.clear();
  if (events_ >= 0) {
    close(events_);
  }
}

}  // namespace peal::verbs

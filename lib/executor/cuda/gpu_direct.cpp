#include "lib/executor/cuda/gpu_direct.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "lib/executor/cuda/agreement.h"
#include "lib/memory/descriptor.h"
#include "transports/gather.h"

namespace peal::cuda {
namespace {

// Of one message of the trial; less where a slot has less.
constexpr size_t kTrialBytes = 4096;

// What one rank brings.
struct Card {
  GpuDirect wish = GpuDirect::Auto;
  uint32_t keyBytes = 0;
  std::array<std::byte, 1024> keys{};          // for Endpoint::peerGpu
  std::array<uint64_t, kMostRanks> inboxes{};  // by rank, where slots of the inbox from it lie
  Text why{};                                  // nothing: its network reaches its GPU
};

const char* nameOf(GpuDirect wish) {
  return wish == GpuDirect::On ? "on" : wish == GpuDirect::Off ? "off" : "auto";
}

// The first reason of any rank; empty: none has one.
std::string firstReason(const std::vector<Text>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].front() != '\0') {
      return fmt::format("rank {}: {}", rank, textOf(all[rank]));
    }
  }
  return "";
}

Result<bool> needsFlush(int device) {
  const auto ask = [device](cudaDeviceAttr attribute, int& value) {
    return cudaResult(cudaDeviceGetAttribute(&value, attribute, device),
                      "asking how device {} orders writes of network devices", device);
  };
  int ordering = 0;
  PEAL_TRY(ask(cudaDevAttrGPUDirectRDMAWritesOrdering, ordering));
  if (ordering >= cudaGPUDirectRDMAWritesOrderingOwner) {
    return false;
  }
  int flushes = 0;
  PEAL_TRY(ask(cudaDevAttrGPUDirectRDMAFlushWritesOptions, flushes));
  if ((flushes & cudaFlushGPUDirectRDMAWritesOptionHost) == 0) {
    return Error{
        pealSystemError,
        fmt::format("GPU {} neither orders what network devices write to it nor can be told to", device)};
  }
  return true;
}

// Slots of this rank, and the network's keys for its inboxes.
Result<ProxySlots> reach(Endpoint& network, const BoxShape& shape, size_t peers, int device,
                         std::vector<std::byte>& keys) {
  if (!network.mayReachGpus()) {
    return Error{pealInvalidUsage, fmt::format("{} does not reach memory of GPUs", network.name())};
  }
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  ProxySlots slots;
  const Result<bool> flush = needsFlush(device);
  if (!flush) {
    return flush.error();
  }
  slots.flush = *flush;
  const size_t page = wholePages(1);
  const size_t whole = wholePages(Proxy::boxesBytes(shape, peers));
  Result<DeviceBuffer> memory = DeviceBuffer::make(device, whole + page);
  if (!memory) {
    return memory.error();
  }
  slots.memory = std::move(*memory);
  slots.base = slots.memory.data() + (page - reinterpret_cast<uintptr_t>(slots.memory.data()) % page) % page;
  GpuMemory shown;
  shown.base = slots.base;
  shown.bytes = whole;
  shown.writtenBytes = Proxy::outboxAt(shape, peers, 0);
  shown.device = device;
  const Result<OwnedFd> dmabuf = dmabufOf(slots.base, whole);
  if (dmabuf) {
    shown.dmabuf = dmabuf->get();
  } else {
    shown.whyNoDmabuf = dmabuf.error().message;
  }
  Result<std::vector<std::byte>> reached = network.reachGpu(shown);
  if (!reached) {
    return reached.error();
  }
  keys = std::move(*reached);
  return slots;
}

Card cardOf(const GpuDirectOptions& options, const Result<ProxySlots>& slots,
            const std::vector<std::byte>& keys, const std::vector<int>& peers, const BoxShape& shape) {
  Card card;
  card.wish = options.wish;
  if (!slots) {
    setText(card.why, slots.error().message);
    return card;
  }
  if (keys.size() > card.keys.size()) {
    setText(card.why,
            fmt::format("its network has keys of {} bytes, more than {}", keys.size(), card.keys.size()));
    return card;
  }
  card.keyBytes = static_cast<uint32_t>(keys.size());
  std::copy(keys.begin(), keys.end(), card.keys.begin());
  for (size_t i = 0; i < peers.size(); ++i) {
    card.inboxes[static_cast<size_t>(peers[i])] =
        reinterpret_cast<uint64_t>(slots->base + Proxy::inboxAt(shape, i));
  }
  return card;
}

Result<void> checkWishes(const std::vector<Card>& cards) {
  for (size_t rank = 1; rank < cards.size(); ++rank) {
    if (cards[rank].wish != cards[0].wish) {
      return Error{
          pealInvalidUsage,
          fmt::format("rank 0 has PEAL_GPU_DIRECT={} and rank {} {}: it must be the same on all ranks",
                      nameOf(cards[0].wish), rank, nameOf(cards[rank].wish))};
    }
  }
  return {};
}

Result<void> take(Endpoint& network, const std::vector<int>& peers, const std::vector<Card>& cards, int rank,
                  ProxySlots& slots) {
  slots.peerInboxes.resize(cards.size());
  for (const int peer : peers) {
    const Card& card = cards[static_cast<size_t>(peer)];
    const auto end = card.keys.begin() + std::min<size_t>(card.keyBytes, card.keys.size());
    PEAL_TRY(network.peerGpu(peer, std::vector<std::byte>(card.keys.begin(), end)));
    slots.peerInboxes[static_cast<size_t>(peer)] = card.inboxes[static_cast<size_t>(rank)];
  }
  return {};
}

// ---- the trial ----

// Every pair sends a slot both ways, and looks whether it lies in the GPU when the message is here: paths
// over a PCIe bridge may lose, delay or refuse what network devices write. A rank that has all it waits for
// says so to its peers, and moves the network on until they have, too, and then (MovesOn) until all are done.
class Trial {
 public:
  Trial(Endpoint& network, const std::vector<int>& peers, const ProxyOptions& options,
        const ProxySlots& slots)
      : network_(network), peers_(peers), options_(options), slots_(slots) {}

  // `why`: what arrived is not what was sent.
  Result<void> run(Deadline deadline, std::string& why) {
    const CurrentDevice current(options_.device);
    PEAL_TRY(current.status());
    Result<StreamHolder> stream = StreamHolder::make(options_.device);
    if (!stream) {
      return stream.error();
    }
    stream_ = std::move(*stream);
    std::vector<Step> steps(peers_.size());
    for (bool done = false; !done;) {
      network_.poll();
      done = true;
      for (size_t i = 0; i < peers_.size(); ++i) {
        PEAL_TRY(advance(i, steps[i], deadline, why));
        done = done && steps[i].saidDone && steps[i].heardDone;
      }
      done = done && network_.settled();  // what was posted last reaches them although nobody polls here
      if (const Result<void> moved = network_.progress(Endpoint::kAnybody); !moved) {
        lostNetwork_ = true;
        return moved.error();
      }
      if (deadline.passed()) {
        lostNetwork_ = true;
        return Error{pealTimeout,
                     fmt::format("{}: messages between GPUs did not arrive in time", options_.name)};
      }
      std::this_thread::yield();
    }
    return {};
  }
  // Whether the error was one of the network, and not of this rank's GPU.
  bool lostNetwork() const { return lostNetwork_; }

 private:
  struct Step {
    bool sent = false, received = false, saidDone = false, heardDone = false;
  };
  struct Note {
    uint64_t mark = 0;  // different for every trial: memory may hold an older one's
  };

  Link& link(size_t i) { return network_.link(peers_[i]); }
  size_t bytes() const { return std::min<size_t>(kTrialBytes, options_.shape.slotBytes); }
  std::byte* slot(size_t boxAt) const { return slots_.base + boxAt + options_.shape.slot(0, 0); }

  static void fill(std::vector<std::byte>& bytes, uint64_t mark) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      mark = mark * 6364136223846793005U + 1442695040888963407U;
      bytes[i] = static_cast<std::byte>(mark >> 56);
    }
  }
  Result<void> copy(void* to, const void* from, Deadline deadline) {
    PEAL_TRY(cudaResult(cudaMemcpyAsync(to, from, bytes(), cudaMemcpyDefault, stream_.get()),
                        "copying for a trial of GPUDirect RDMA"));
    return awaitStream(stream_.get(), deadline, "copying for a trial of GPUDirect RDMA");
  }

  Result<void> advance(size_t i, Step& step, Deadline deadline, std::string& why) {
    const Note note{static_cast<uint64_t>(Clock::now().time_since_epoch().count()) * kMostRanks + i};
    std::vector<std::byte> content(bytes());
    if (!step.sent) {
      if (std::byte* const stage = link(i).tryStage(sizeof note); stage != nullptr) {
        const size_t box = Proxy::outboxAt(options_.shape, peers_.size(), i);
        fill(content, note.mark);
        PEAL_TRY(copy(slot(box), content.data(), deadline));
        std::memcpy(stage, &note, sizeof note);
        const Carried carried{slot(box), bytes(),
                              slots_.peerInboxes[static_cast<size_t>(peers_[i])] + options_.shape.slot(0, 0)};
        step.sent = link(i).tryPostCarrying(sizeof note, {}, carried);
      }
    }
    Arrival arrival;
    if (!step.received && link(i).tryReceive(arrival)) {
      Note theirs;
      std::memcpy(&theirs, arrival.data, std::min(sizeof theirs, arrival.bytes));
      std::vector<std::byte> expected(bytes());
      fill(expected, theirs.mark);
      PEAL_TRY(slots_.awaitWrites());
      PEAL_TRY(copy(content.data(), slot(Proxy::inboxAt(options_.shape, i)), deadline));
      if (content != expected && why.empty()) {
        why = fmt::format("what rank {}'s network device wrote to GPU {} is not what lies there", peers_[i],
                          options_.device);
      }
      link(i).release();
      step.received = true;
    } else if (!step.heardDone && step.received && link(i).tryReceive(arrival)) {
      link(i).release();
      step.heardDone = true;
    }
    if (!step.saidDone && step.sent && step.received && link(i).released(link(i).posted()) &&
        link(i).tryStage(0) != nullptr) {
      link(i).post(0, {});
      step.saidDone = true;
    }
    return {};
  }

  Endpoint& network_;
  const std::vector<int>& peers_;
  const ProxyOptions& options_;
  const ProxySlots& slots_;
  StreamHolder stream_;
  bool lostNetwork_ = false;
};

// Moves the network on while this rank waits for others that may still be trying it: a link that fails is
// made anew by both its ends. Nothing else may use the network meanwhile.
class MovesOn {
 public:
  explicit MovesOn(Endpoint& network) : thread_([this, &network] { run(network); }) {}
  ~MovesOn() {
    ends_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  MovesOn(const MovesOn&) = delete;
  MovesOn& operator=(const MovesOn&) = delete;

 private:
  void run(Endpoint& network) {
    while (!ends_.load(std::memory_order_relaxed) && network.progress(Endpoint::kNobody)) {
      network.poll();
      std::this_thread::yield();
    }
  }

  std::atomic<bool> ends_{false};
  std::thread thread_;
};

struct Verdict {
  Text why{};  // nothing: every path of this rank carries what it is given
  bool isLost = false;
};

// Collective. `why` stays empty if every path carries what it is given; `isLost`: some rank's network was
// lost on trying it, and is of no use to anybody any more. An error is one of some rank's GPU.
Result<void> tryPaths(Exchange& exchange, Endpoint& network, const std::vector<int>& peers,
                      const ProxyOptions& options, const ProxySlots& slots, Deadline deadline,
                      std::string& why, bool& isLost) {
  Verdict mine;
  std::string seen;
  Trial trial(network, peers, options, slots);
  const Result<void> tried = trial.run(deadline, seen);
  if (!tried) {
    // Or the peers would wait for the deadline.
    network.farewell(network.culpritRank() >= 0 ? network.culpritRank() : options.rank,
                     tried.error().message);
    seen = fmt::format("the trial of GPUDirect RDMA failed: {}", tried.error().message);
    mine.isLost = true;
  }
  isLost = mine.isLost;
  setText(mine.why, seen);
  const Result<std::vector<Verdict>> all = [&] {
    std::optional<MovesOn> meanwhile;
    if (tried) {
      meanwhile.emplace(network);
    }
    return gather(exchange, mine);
  }();
  if (!all) {
    return all.error();
  }
  std::vector<Text> reasons;
  for (const Verdict& verdict : *all) {
    reasons.push_back(verdict.why);
    isLost = isLost || verdict.isLost;
  }
  why = firstReason(reasons);
  return agreeOn(exchange, tried || trial.lostNetwork() ? Result<void>() : tried);
}

}  // namespace

Result<void> ProxySlots::awaitWrites() const {
  if (!flush) {
    return {};
  }
  return cudaResult(cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                                       cudaFlushGPUDirectRDMAWritesToOwner),
                    "cudaDeviceFlushGPUDirectRDMAWrites");
}

Result<std::optional<ProxySlots>> placeSlots(Exchange& exchange, std::unique_ptr<Endpoint>& network,
                                             const std::vector<int>& peers, const ProxyOptions& proxy,
                                             const GpuDirectOptions& options, std::string& why) {
  std::vector<std::byte> keys;
  Result<ProxySlots> slots = options.wish == GpuDirect::Off
                                 ? Result<ProxySlots>(Error{pealInvalidUsage, "PEAL_GPU_DIRECT=off"})
                                 : reach(*network, proxy.shape, peers.size(), proxy.device, keys);
  const Result<std::vector<Card>> cards = gather(exchange, cardOf(options, slots, keys, peers, proxy.shape));
  if (!cards) {
    network->leaveGpu();
    return cards.error();
  }
  std::vector<Text> reasons;
  for (const Card& card : *cards) {
    reasons.push_back(card.why);
  }
  why = firstReason(reasons);
  bool isLost = false;
  Result<void> agreed = checkWishes(*cards);
  if (agreed && why.empty()) {
    agreed = agreeOn(exchange, take(*network, peers, *cards, proxy.rank, *slots));
    if (agreed) {
      // Half of the time: the other is for a network without it.
      agreed = tryPaths(exchange, *network, peers, proxy, *slots,
                        Deadline::afterMs(options.deadline.leftMs() / 2), why, isLost);
    }
  }
  if (agreed && !why.empty() && options.wish == GpuDirect::On) {
    agreed = Error{pealInvalidUsage, fmt::format("PEAL_GPU_DIRECT=on cannot be had: {}", why)};
  }
  if (isLost) {
    network.reset();  // before the slots, which its queue pairs may still be told to read
  } else if (!agreed || !why.empty()) {
    network->leaveGpu();
  }
  if (!agreed) {
    return agreed.error();
  }
  if (isLost) {
    Result<std::unique_ptr<Endpoint>> another = options.connect();
    if (!another) {
      return another.error();
    }
    network = std::move(*another);
  }
  return why.empty() ? std::optional<ProxySlots>(std::move(*slots)) : std::nullopt;
}

}  // namespace peal::cuda

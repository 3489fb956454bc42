#include "lib/executor/cuda/proxy.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "lib/executor/cuda/faults.h"

namespace peal::cuda {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A kernel cannot ring a bell: the proxy looks. Without work it looks less often as time goes by; what
// arrives over the network wakes it at once.
constexpr auto kSpin = microseconds(200);
constexpr auto kDoze = milliseconds(100);
constexpr int64_t kDozeUs = 100;
constexpr int64_t kSleepUs = 1000;
constexpr auto kLookEvery = milliseconds(10);

}  // namespace

// ---- beginning and end ----

Result<std::unique_ptr<Proxy>> Proxy::start(std::unique_ptr<Endpoint> network, const std::vector<int>& peers,
                                            const ProxyOptions& options, std::optional<ProxySlots> slots) {
  if (network->slotBytes() < sizeof(Header) + options.shape.slotBytes) {
    return Error{
        pealInvalidUsage,
        fmt::format("{}: the slots of {} have {} bytes, and the proxy needs {} for a slot of {} bytes",
                    options.name, network->name(), network->slotBytes(),
                    sizeof(Header) + options.shape.slotBytes, options.shape.slotBytes)};
  }
  std::unique_ptr<Proxy> proxy(new Proxy(std::move(network), peers, options, std::move(slots)));
  Result<PinnedBuffer> memory =
      PinnedBuffer::make(options.device, std::max<size_t>(boxesBytes(options.shape, peers.size()), 1));
  if (!memory) {
    return memory.error();
  }
  proxy->memory_ = std::move(*memory);
  for (size_t i = 0; i < peers.size(); ++i) {
    const size_t at = windowAt(options.shape, i);
    proxy->peers_[i].base = proxy->memory_.data() + at;
    proxy->peers_[i].onDevice = proxy->memory_.deviceData() + at;
    proxy->peers_[i].outboxOffset = outboxAt(options.shape, peers.size(), i) - at;
  }
  try {
    proxy->thread_ = std::thread([self = proxy.get()] { self->run(); });
  } catch (const std::system_error& error) {
    return Error{pealSystemError,
                 fmt::format("{}: no thread could be started for the proxy: {}", options.name, error.what())};
  }
  return proxy;
}

Proxy::Proxy(std::unique_ptr<Endpoint> network, const std::vector<int>& peers, const ProxyOptions& options,
             std::optional<ProxySlots> slots)
    : options_(options), slots_(std::move(slots)), network_(std::move(network)) {
  for (const int rank : peers) {
    Peer peer;
    peer.rank = rank;
    peer.channels.resize(static_cast<size_t>(options.shape.channels));
    peers_.push_back(std::move(peer));
  }
}

void Proxy::end() {
  stop_.store(true, std::memory_order_relaxed);  // nothing is handed over with it
  if (thread_.joinable()) {
    network_->wake();
    thread_.join();
  }
  std::unique_ptr<Endpoint> ended;
  {
    const std::lock_guard lock(mutex_);
    ended = std::move(network_);
  }
  // Its end may take seconds, waiting for peers; fault() and stop() do not wait for it.
}

size_t Proxy::networkSlotBytes(const BoxShape& shape) {
  constexpr size_t kMultiple = 64;  // fabric.h
  return (sizeof(Header) + shape.slotBytes + kMultiple - 1) / kMultiple * kMultiple;
}

const Proxy::Peer& Proxy::served(int peerRank) const {
  return *std::find_if(peers_.begin(), peers_.end(),
                       [peerRank](const Peer& peer) { return peer.rank == peerRank; });
}

std::byte* Proxy::inbox(int peerRank) const { return served(peerRank).onDevice + inboxOffset(); }
std::byte* Proxy::outbox(int peerRank) const {
  const Peer& peer = served(peerRank);
  return peer.onDevice + peer.outboxOffset;
}
uint64_t* Proxy::peerStopped(int peerRank) const {
  return reinterpret_cast<uint64_t*>(served(peerRank).onDevice);
}

SlotsApart Proxy::slotsApart() const {
  if (!slots_) {
    return {};
  }
  const auto boxes = reinterpret_cast<uint64_t>(memory_.deviceData());
  return {boxes, memory_.bytes(), reinterpret_cast<uint64_t>(slots_->base) - boxes};
}

// ---- faults ----

std::optional<Fault> Proxy::fault() const {
  if (!faulted_.load(std::memory_order_acquire)) {  // pairs with raise()
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  return fault_;
}

void Proxy::raise(Fault fault) {
  const std::lock_guard lock(mutex_);
  if (fault_) {
    return;
  }
  if (options_.board != nullptr) {
    std::atomic_ref(options_.board->stop).store(1, std::memory_order_release);  // kernels poll it
  }
  if (network_ != nullptr) {
    network_->farewell(std::max(fault.culpritRank, 0), fault.error.message);
  }
  fault_ = std::move(fault);
  faulted_.store(true, std::memory_order_release);  // pairs with fault()
}

void Proxy::stop(int culpritRank, const std::string& reason) {
  raise({{pealRemoteError, reason}, culpritRank});
}

Result<void> Proxy::close(Deadline deadline) {
  closing_.store(true, std::memory_order_relaxed);
  network_->wake();
  while (!flushed_.load(std::memory_order_acquire)) {  // pairs with run()
    if (const std::optional<Fault> why = fault()) {
      return why->error;
    }
    if (deadline.passed()) {
      return Error{pealTimeout,
                   fmt::format("{}: peers have not taken everything that was sent to them through "
                               "the proxy. Did all ranks make the same calls?",
                               options_.name)};
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return {};
}

// ---- the thread ----

void Proxy::run() {
  std::optional<RelaxedCapture> relaxed;
  std::optional<CurrentDevice> current;
  if (slots_ && slots_->flush) {  // else it calls nothing of CUDA
    relaxed.emplace();
    current.emplace(options_.device);
    if (!current->status()) {
      raise({current->status().error(), options_.rank});
    }
  }
  lastWork_ = lastLook_ = Clock::now();
  while (!stop_.load(std::memory_order_relaxed) && !faulted_.load(std::memory_order_relaxed)) {
    bool worked = false;
    if (network_->needsPoll()) {
      network_->poll();
    }
    for (Peer& peer : peers_) {
      worked = receive(peer) || worked;
      worked = forward(peer) || worked;
    }
    lookAtHealth();
    if (worked) {
      lastWork_ = Clock::now();
    } else {
      if (closing_.load(std::memory_order_relaxed) && !pending() && network_->settled()) {
        flushed_.store(true, std::memory_order_release);  // pairs with close()
      }
      rest();
    }
  }
}

// Whether a kernel's message or credit is under way, on this side as far as it can be seen here.
bool Proxy::pending() const {
  for (const Peer& peer : peers_) {
    for (int c = 0; c < options_.shape.channels; ++c) {
      const Channel& channel = peer.channels[static_cast<size_t>(c)];
      const uint64_t tail = load(peer, peer.outboxOffset + options_.shape.tail(c));
      const uint64_t released = load(peer, peer.outboxOffset + options_.shape.heads(c));
      if (tail != channel.creditsBack || released != channel.creditsSent) {
        return true;
      }
    }
  }
  return false;
}

void Proxy::rest() {
  const auto idle = Clock::now() - lastWork_;
  if (idle < kSpin) {
    std::this_thread::yield();
    return;
  }
  const uint32_t token = network_->prepareSleep();
  Arrival arrival;
  for (const Peer& peer : peers_) {
    if (network_->link(peer.rank).tryReceive(arrival)) {
      network_->cancelSleep();
      return;
    }
  }
  network_->sleep(token, idle < kDoze ? kDozeUs : kSleepUs);
}

// Of this rank's kernels, which have set a peer's stop word.
Fault Proxy::kernelsFault() const {
  if (options_.board != nullptr) {
    if (const std::optional<FaultRecord> record = readFault(options_.board->fault)) {
      std::optional<Fault> fault = faultOf(*record, {.name = options_.name,
                                                     .rank = options_.rank,
                                                     .device = options_.device,
                                                     .timeoutMs = options_.timeoutMs});
      if (fault) {
        return *fault;
      }
    }
  }
  return {{pealRemoteError, fmt::format("{}: its kernels were stopped", options_.name)}, options_.rank};
}

void Proxy::lookAtHealth() {
  const auto now = Clock::now();
  if (now - lastLook_ < kLookEvery) {
    return;
  }
  lastLook_ = now;
  if (const Result<void> health = network_->progress(Endpoint::kAnybody); !health) {
    raise({{health.error().code, fmt::format("{}: {}", options_.name, health.error().message)},
           network_->culpritRank()});
    return;
  }
  for (const Peer& peer : peers_) {
    if (load(peer, 0) != 0) {
      raise(kernelsFault());
    } else if (options_.timeoutMs > 0 && peer.blockedSince &&
               now - *peer.blockedSince > milliseconds(options_.timeoutMs)) {
      raise({{pealTimeout, fmt::format("{}: rank {} has taken nothing from its {} link for {} ms",
                                       options_.name, peer.rank, network_->name(), options_.timeoutMs)},
             peer.rank});
    }
  }
}

}  // namespace peal::cuda

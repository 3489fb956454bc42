// The proxy: a host thread that carries messages between this rank's kernels and peers whose memory no kernel
// can reach, over a network transport. It forwards whatever is posted and knows no algorithm.
//
// For such a peer, CommView's inbox and outbox point to boxes (view.h) in pinned host memory of this rank:
//
//   kernel --> outbox --> proxy --> Link ~~~~ Link --> proxy --> inbox --> kernel
//
// The box's ring of messages is the command fifo: the kernel fills a slot, describes it in a Message and
// stores the tail (release); the proxy loads the tail (acquire) and posts the slot on the link. The other
// proxy copies it into the same slot of its inbox and stores the tail there (release), for its kernel's
// acquire. Credits go back the same way: the kernel stores `heads` in its outbox, the proxy sends the count,
// with the next message of that channel or alone, and the other proxy stores it in `heads` of its inbox.
// Credits are between the kernels, so a message that arrives always finds its slot free, a proxy never waits
// for a kernel, and two proxies never wait for each other. Protocol Simple only (the tuner gives these peers
// nothing else), and no references.
//
// Owns the network's endpoint, the boxes and the thread. Made by the executor (setup.cpp) before its kernels;
// ended after they have, and destroyed when none can run any more. Nothing is allocated once it runs.
//
// How a network plugs in: the proxy needs an Endpoint (transports/transport.h) whose slots hold a box's slot
// and a header, nothing else: a payload is copied into the link's slot, and out of it.
//
// With GPUDirect RDMA (gpu_direct.h) the boxes' slots lie in memory of the GPU (ProxySlots,
// CommView::slotsApart); tails, credits and Messages stay here. A message of the link is a header then, and
// carries the payload (Link::tryPostCarrying) from the outbox's slot into the slot of the same number in the
// peer's inbox. Credits between the kernels keep both right: the slot here is not written again before the
// peer's kernel has released the message, and the slot there is free since it has released the one before; a
// link that sends something again does so only until its message has been shown there, which is sooner. What
// the kernel wrote before its release of the tail at system scope the NIC may read; what the NIC wrote the
// kernel may read after its acquire of the tail, which the proxy stores when the message is here and, on GPUs
// that need it, has been flushed.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/result.h"
#include "lib/executor/cuda/view.h"
#include "lib/executor/host/operation.h"
#include "lib/memory/cuda.h"
#include "transports/transport.h"

namespace peal::cuda {

struct ProxyOptions {
  int rank = 0;
  int size = 1;
  int device = 0;
  BoxShape shape;
  std::string name;       // for messages
  int64_t timeoutMs = 0;  // a link that takes nothing for so long is a fault; 0: never
  // As the host addresses it: a fault stops the rank's kernels, and theirs is what the peers are told.
  HostBoard* board = nullptr;
};

// Slots of all boxes of a proxy in memory of its GPU: laid out like the boxes, of which they are parts.
struct ProxySlots {
  DeviceBuffer memory;
  std::byte* base = nullptr;          // where a box at offset 0 would lie
  std::vector<uint64_t> peerInboxes;  // by rank: likewise, that peer's inbox from this rank, for its network
  bool flush = false;                 // see awaitWrites()

  // What a network's device wrote before a message that is here: returns when the GPU sees it. On its device.
  Result<void> awaitWrites() const;
};

class Proxy {
 public:
  // `peers`: the ranks that it serves.
  static Result<std::unique_ptr<Proxy>> start(std::unique_ptr<Endpoint> network,
                                              const std::vector<int>& peers, const ProxyOptions& options,
                                              std::optional<ProxySlots> slots = std::nullopt);
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  ~Proxy() { end(); }

  // What a slot of the network must hold.
  static size_t networkSlotBytes(const BoxShape& shape);
  // How the boxes of `peers` lie, each at the peer's index among them: for every peer a window's beginning
  // and the inbox, then, in pages of their own, the outboxes, which no network device writes.
  static constexpr size_t kPageBytes = size_t{64} << 10;  // the largest of hosts
  static constexpr size_t windowAt(const BoxShape& shape, size_t index) {
    return index * (WindowShape::kInboxesAt + shape.boxBytes());
  }
  static constexpr size_t inboxAt(const BoxShape& shape, size_t index) {
    return windowAt(shape, index) + WindowShape::kInboxesAt;
  }
  static constexpr size_t outboxAt(const BoxShape& shape, size_t peers, size_t index) {
    return (windowAt(shape, peers) + kPageBytes - 1) / kPageBytes * kPageBytes + index * shape.boxBytes();
  }
  static constexpr size_t boxesBytes(const BoxShape& shape, size_t peers) {
    return outboxAt(shape, peers, peers);
  }

  // For CommView, as kernels address them.
  std::byte* inbox(int peerRank) const;
  std::byte* outbox(int peerRank) const;
  uint64_t* peerStopped(int peerRank) const;
  SlotsApart slotsApart() const;
  // All of it, as the host addresses it: what a network registers.
  std::span<std::byte> boxes() const { return {memory_.data(), memory_.bytes()}; }

  // The first fault: of the network, of a peer, or given to stop(). Looks only.
  std::optional<Fault> fault() const;
  // Ends the work here, and on the peers as they notice. Any thread.
  void stop(int culpritRank, const std::string& reason);
  // After the kernels have ended: waits until everything posted has been taken by the peers' kernels.
  Result<void> close(Deadline deadline);
  // Ends the thread at once and leaves the network; close() comes before it where the rank leaves in good
  // order. The boxes stay for kernels that may still run. The last call.
  void end();

 private:
  struct Channel {
    uint64_t forwarded = 0;    // messages of our kernel that are on the link
    uint64_t received = 0;     // messages in the inbox
    uint64_t creditsSent = 0;  // of the peer's messages: what it has been told that our kernel released
    uint64_t creditsBack = 0;  // of our messages: what the peer's kernel released
  };
  struct Peer {
    int rank = 0;
    std::byte* base = nullptr;  // host address: a window's beginning, the inbox
    std::byte* onDevice = nullptr;
    size_t outboxOffset = 0;  // from there
    std::vector<Channel> channels;
    std::optional<Clock::time_point> blockedSince;  // the link has taken nothing since then
  };
  // Ahead of every message on the link.
  struct Header {
    uint32_t isData = 0;
    uint32_t channel = 0;
    uint64_t number = 0;    // of the message, from 1
    uint64_t released = 0;  // credits: messages of the other direction, in all
    Message message{};
  };

  Proxy(std::unique_ptr<Endpoint> network, const std::vector<int>& peers, const ProxyOptions& options,
        std::optional<ProxySlots> slots);
  void run();
  bool forward(Peer& peer);
  bool forwardChannel(Peer& peer, int channel);
  bool post(Peer& peer, int channel, const Header& header, size_t slotAt);
  bool handOver(Peer& peer, std::byte* stage, const Header& header, size_t slotAt);
  bool receive(Peer& peer);
  void take(Peer& peer, const Arrival& arrival);
  bool checkHeader(const Peer& peer, const Header& header, size_t arrivedBytes);
  void lookAtHealth();
  Fault kernelsFault() const;
  void rest();
  bool pending() const;
  void raise(Fault fault);

  // Words that kernels share with the proxy; kernels use the same orders at system scope (device.h).
  static uint64_t load(const Peer& peer, size_t offset) {
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(peer.base + offset)).load(std::memory_order_acquire);
  }
  static void store(const Peer& peer, size_t offset, uint64_t value) {
    std::atomic_ref(*reinterpret_cast<uint64_t*>(peer.base + offset)).store(value, std::memory_order_release);
  }
  // The beginning of a window, of which the stop word alone is in use: a peer's passages stay unknown
  // (zeros), as they lie in its device memory.
  size_t inboxOffset() const { return WindowShape::kInboxesAt; }
  // Whether the payload lies in its slot, at a place in its first 16 bytes (BoxShape::payloadBytes).
  bool fits(const Message& message) const {
    return message.address < 16 && message.bytes <= options_.shape.slotBytes - message.address;
  }
  const Peer& served(int peerRank) const;

  const ProxyOptions options_;
  const std::optional<ProxySlots> slots_;  // nullopt: in the boxes
  std::unique_ptr<Endpoint> network_;      // nullptr after end(); taken with mutex_ held
  PinnedBuffer memory_;
  std::vector<Peer> peers_;
  Clock::time_point lastWork_{};
  Clock::time_point lastLook_{};

  std::atomic<bool> stop_{false};     // the thread ends
  std::atomic<bool> closing_{false};  // close() waits for `flushed_`
  std::atomic<bool> flushed_{false};
  // fault_ is set: stored (release) by raise(), loaded (acquire) by readers.
  std::atomic<bool> faulted_{false};
  mutable std::mutex mutex_;  // guards fault_, and the end of network_
  std::optional<Fault> fault_;
  std::thread thread_;
};

}  // namespace peal::cuda

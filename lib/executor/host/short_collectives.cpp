#include "lib/executor/host/short_collectives.h"

#include <cstring>

#include "lib/executor/host/wait.h"

namespace peal {
namespace {

// Longer messages are read in place where they can be, which is the port's business.
constexpr size_t kMostBytes = 4095;
// A root copies its message for each peer as long as all copies together are no longer: then it runs ahead of
// its peers as far as a link has room for short messages. Longer ones are copied once, into a slot.
constexpr size_t kMostCopiesBytes = 8192;

size_t messageBytes(const Collective& call) { return call.count * elementBytes(call.type); }

// Not inlined: where gcc knows that the size is small it puts a string move in memcpy's place, which takes 28
// ns longer for 1 KiB (docs/BENCH.md's machine, 2026-12-01).
[[gnu::noinline]] void copyShort(void* to, const void* from, size_t sizeBytes) {
  if (sizeBytes >= kStringMoveLeastBytes) {
    copyBytes(to, from, sizeBytes, Store::Cached);
  } else if (sizeBytes > 0 && to != from) {
    std::memcpy(to, from, sizeBytes);
  }
}

class ShortCall {
 public:
  ShortCall(HostContext& context, const Collective& call, const Digest& digest)
      : context_(context),
        call_(call),
        digest_(digest),
        waiter_(context, digest),
        endpoint_(*context.endpoint),
        sizeBytes_(messageBytes(call)) {}

  std::optional<Fault> run() {
    switch (call_.kind) {
      case pealStatReduceScatter:
        reduceScatter();
        break;
      case pealStatAllGather:
        allGather();
        break;
      case pealStatBroadcast:
        broadcast();
        break;
      case pealStatReduce:
        reduceToRoot();
        break;
      default:
        allReduce();
    }
    endpoint_.announce(digest_, false);
    return waiter_.takeFault();
  }

 private:
  // A rank cannot be past these three before every other has sent its message of the next call: so nobody
  // sleeps for want of a credit that is given back here.
  void allReduce() {
    if (sendToAll(call_.send) && receiveAll()) {
      sum(call_.send);
      for (int step = 1; step < context_.size; ++step) {
        link(peer(step)).releaseQuietly();
      }
      waiter_.untilSettled();
    }
  }

  void allGather() {
    auto* const out = static_cast<std::byte*>(call_.recv);
    if (!sendToAll(call_.send)) {
      return;
    }
    copyShort(place(out, context_.rank), call_.send, sizeBytes_);
    for (int step = 1; step < context_.size; ++step) {
      const int from = peer(step);
      const std::byte* data = nullptr;
      if (!receive(from, data)) {
        return;
      }
      copyShort(place(out, from), data, sizeBytes_);
      link(from).releaseQuietly();
    }
    waiter_.untilSettled();
  }

  void reduceScatter() {
    const auto* const in = static_cast<const std::byte*>(call_.send);
    for (int step = 1; step < context_.size; ++step) {
      if (!sendTo(peer(step), place(in, peer(step)))) {
        return;
      }
    }
    count(static_cast<size_t>(context_.size) - 1);
    if (receiveAll()) {
      sum(place(in, context_.rank));
      for (int step = 1; step < context_.size; ++step) {
        link(peer(step)).releaseQuietly();
      }
      waiter_.untilSettled();
    }
  }

  void broadcast() {
    const std::byte* data = nullptr;
    if (context_.rank == call_.root) {
      if (sendCopies(call_.send)) {
        copyShort(call_.recv, call_.send, sizeBytes_);
        waiter_.untilSettled();
      }
    } else if (announce(), receive(call_.root, data)) {
      copyShort(call_.recv, data, sizeBytes_);
      link(call_.root).release();
      waiter_.untilSettled();
    }
  }

  void reduceToRoot() {
    if (context_.rank != call_.root) {
      if (sendTo(call_.root, call_.send)) {
        count(1);
        waiter_.untilSettled();
      }
    } else if (announce(), receiveAll()) {
      sum(call_.send);
      for (int step = 1; step < context_.size; ++step) {
        link(peer(step)).release();
      }
      waiter_.untilSettled();
    }
  }

  int peer(int step) const { return (context_.rank + step) % context_.size; }
  Link& link(int rank) { return endpoint_.link(rank); }
  template <class Byte>
  Byte* place(Byte* array, int rank) const {
    return array + static_cast<size_t>(rank) * sizeBytes_;
  }

  void announce() { endpoint_.announce(digest_, true); }

  // Memory for a message; what is not there at once may take long.
  template <class TryStage>
  std::byte* staged(int to, TryStage&& tryStage) {
    std::byte* slot = tryStage();
    if (slot == nullptr) [[unlikely]] {
      announce();
      waiter_.until(to, [&] { return (slot = tryStage()) != nullptr; });
    }
    return slot;
  }

  void fill(std::byte* slot, const void* data) {
    if (storeForSlot(context_, sizeBytes_) == Store::Streaming) {
      copyBytes(slot, data, sizeBytes_, Store::Streaming);
    } else {
      copyShort(slot, data, sizeBytes_);
    }
  }

  bool sendToAll(const void* data) {
    std::byte* slot = staged(-1, [&] { return endpoint_.tryStageAll(sizeBytes_); });
    if (slot == nullptr) {
      return false;
    }
    fill(slot, data);
    endpoint_.postAll(sizeBytes_, digest_);
    count(static_cast<size_t>(context_.size) - 1);
    return true;
  }

  bool sendTo(int to, const void* data) {
    std::byte* slot = staged(to, [&] { return link(to).tryStageShort(sizeBytes_); });
    if (slot == nullptr) {
      return false;
    }
    fill(slot, data);
    link(to).post(sizeBytes_, digest_);
    return true;
  }

  // The same to all, as sendToAll; but nobody of them is waited for before the link to it is full.
  bool sendCopies(const void* data) {
    const auto copies = static_cast<size_t>(context_.size) - 1;
    if (sizeBytes_ * copies > kMostCopiesBytes) {
      return sendToAll(data);
    }
    for (int step = 1; step < context_.size; ++step) {
      if (!sendTo(peer(step), data)) {
        return false;
      }
    }
    count(copies);
    return true;
  }

  // After the message: the peers wait for that.
  void count(size_t messages) {
    announce();
    context_.stats.bytesSent[call_.kind] += sizeBytes_ * messages;
    context_.stats.messages[call_.kind] += messages;
  }

  bool receive(int from, const std::byte*& data) {
    Arrival& room = context_.arrivals[static_cast<size_t>(from)];
    Link& incoming = link(from);
    const Arrival* arrival = nullptr;
    if (!waiter_.until(from, [&] { return (arrival = incoming.tryPeek(room)) != nullptr; })) {
      return false;
    }
    const bool hasData = !arrival->landed && !arrival->remote;
    if (arrival->digest != digest_ || arrival->bytes != sizeBytes_ || !hasData) [[unlikely]] {
      waiter_.fail(unexpectedArrival(context_, digest_, from, sizeBytes_, *arrival), from);
      return false;
    }
    data = arrival->data;
    return true;
  }

  // All messages of the peers: where each term of the sum lies.
  bool receiveAll() {
    for (int step = 1; step < context_.size; ++step) {
      const std::byte* data = nullptr;
      if (!receive(peer(step), data)) {
        return false;
      }
      context_.sources[static_cast<size_t>(peer(step))] = data;
    }
    return true;
  }

  void sum(const void* own) {
    context_.sources[static_cast<size_t>(context_.rank)] = own;
    if (call_.count > 0) {
      reduce(call_.type, call_.op,
             {.sources = context_.sources,
              .destinations = {call_.recv, nullptr},
              .count = call_.count,
              .finish = Finish::Yes});
    }
  }

  HostContext& context_;
  const Collective& call_;
  const Digest& digest_;
  Waiter waiter_;
  Endpoint& endpoint_;
  const size_t sizeBytes_;
};

}  // namespace

bool isShort(const HostContext& context, const Collective& call) {
  const size_t sizeBytes = messageBytes(call);
  return call.choice.algorithm == Algorithm::OneShot && context.endpoint != nullptr &&
         sizeBytes <= kMostBytes && sizeBytes <= call.choice.chunkBytes &&
         sizeBytes <= context.endpoint->slotBytes() && !call.op.preMultiply && call.epilogue == nullptr &&
         call.starts.empty();
}

std::optional<Fault> runShort(HostContext& context, const Collective& call, const Digest& digest) {
  return ShortCall(context, call, digest).run();
}

}  // namespace peal

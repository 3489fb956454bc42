// Sends and receives of a group, progressed together: no operation of the list waits for another of another
// pair to finish, so any pattern of exchanges that the ranks agree on is free of deadlock.
#include <fmt/format.h>

#include <algorithm>

#include "lib/executor/host/operation.h"
#include "lib/executor/host/wait.h"

namespace peal {
namespace {

// Shorter bytes are cheaper copied into a slot than read where they lie, which costs the sender a wait.
constexpr size_t kInPlaceLeastBytes = 4096;
// The same where the receiver needs a system call to read them: of ranks that take turns, whose slots are
// filled in the cache, and of others.
constexpr size_t kPullLeastBytesInTurns = 16384;
constexpr size_t kPullLeastBytes = 65536;

// A peer's two directions in HostContext::lanes.
constexpr uint8_t kSendBusy = 1, kRecvBusy = 2;
// And that it may be reading what this rank sent.
constexpr uint8_t kReferenced = 4;

size_t totalBytes(const PointToPoint& call) { return call.count * elementBytes(call.type); }
bool finished(const PointToPoint& call) { return call.started && call.doneBytes == totalBytes(call); }

Digest digestOf(const PointToPoint& call) {
  Digest digest;
  digest.count = call.count;
  digest.sequence = call.sequence;
  digest.collective = static_cast<uint8_t>(call.isSend ? pealStatSend : pealStatRecv);
  digest.type = static_cast<uint8_t>(call.type);
  digest.op = Digest::kNoOp;
  return digest;
}

class Batch {
 public:
  Batch(HostContext& context, std::vector<PointToPoint>& calls)
      : context_(context), calls_(calls), digest_(digestOf(calls.front())), waiter_(context, digest_) {}

  std::optional<Fault> run() {
    size_t recvBytes = 0;
    bool toSelf = false;
    for (const PointToPoint& call : calls_) {
      recvBytes += call.isSend ? 0 : totalBytes(call);
      toSelf |= call.peer == context_.rank;
    }
    store_ = storeForCopy(recvBytes);
    std::fill(context_.lanes.begin(), context_.lanes.end(), uint8_t{0});
    announce();
    if (toSelf) {
      advance(Which::Sends);  // the peers need not wait for this rank's copies
      if (std::optional<Fault> fault = runToSelf()) {
        return fault;
      }
      skipFinished();
    }
    while (first_ < calls_.size()) {
      if (!waiter_.until(calls_[first_].peer, [&] { return advance(Which::All); })) {
        break;
      }
    }
    drain();
    return waiter_.takeFault();
  }

 private:
  enum class Which { Sends, All };

  // The last of the list: that is where this rank goes.
  void announce() {
    const auto last = std::find_if(calls_.rbegin(), calls_.rend(),
                                   [this](const PointToPoint& call) { return call.peer != context_.rank; });
    if (last != calls_.rend()) {
      context_.endpoint->announce(digestOf(*last), true);
    }
  }

  void skipFinished() {
    while (first_ < calls_.size() && finished(calls_[first_])) {
      ++first_;
    }
  }

  // One pass over the list; within a pair and direction only the oldest may move. True if anything did (or
  // failed).
  bool advance(Which which) {
    bool moved = false;
    for (uint8_t& lane : context_.lanes) {
      lane &= kReferenced;
    }
    for (size_t i = first_; i < calls_.size(); ++i) {
      PointToPoint& call = calls_[i];
      uint8_t& lane = context_.lanes[static_cast<size_t>(call.peer)];
      const uint8_t direction = call.isSend ? kSendBusy : kRecvBusy;
      const bool skipped = call.peer == context_.rank || (which == Which::Sends && !call.isSend);
      if (skipped || finished(call) || (lane & direction) != 0) {
        continue;
      }
      while (!finished(call) && !waiter_.failed() && (call.isSend ? trySend(call, lane) : tryReceive(call))) {
        moved = true;
      }
      if (!finished(call)) {
        lane |= direction;
      }
    }
    skipFinished();
    return moved || waiter_.failed();
  }

  // The whole rest where the receiver can read it where it lies, else a slot full of it.
  bool trySend(PointToPoint& call, uint8_t& lane) {
    Link& link = context_.endpoint->link(call.peer);
    const std::byte* data = call.send + call.doneBytes;
    size_t sizeBytes = totalBytes(call) - call.doneBytes;
    const Digest digest = digestOf(call);
    if (sizeBytes >= kInPlaceLeastBytes && link.canReference(data, sizeBytes)) {
      if (!link.tryPostReference(data, sizeBytes, digest)) {
        return false;
      }
      lane |= kReferenced;
    } else if (sizeBytes >= (context_.oversubscribed ? kPullLeastBytesInTurns : kPullLeastBytes) &&
               link.canOffer(data, sizeBytes)) {
      if (!link.tryPostOffer(data, sizeBytes, digest)) {
        return false;
      }
      lane |= kReferenced;
    } else {
      sizeBytes = std::min(sizeBytes, context_.endpoint->slotBytes());
      std::byte* slot = link.tryStageShort(sizeBytes);
      if (slot == nullptr) {
        return false;
      }
      copyBytes(slot, data, sizeBytes, storeForSlot(context_, sizeBytes));
      link.post(sizeBytes, digest);
    }
    call.started = true;
    call.doneBytes += sizeBytes;
    context_.stats.bytesSent[pealStatSend] += sizeBytes;
    ++context_.stats.messages[pealStatSend];
    return true;
  }

  bool tryReceive(PointToPoint& call) {
    Link& link = context_.endpoint->link(call.peer);
    const Arrival* const shown = link.tryPeek(context_.arrivals[static_cast<size_t>(call.peer)]);
    if (shown == nullptr) {
      return false;
    }
    const Arrival& arrival = *shown;
    Digest expected = digestOf(call);
    expected.collective = pealStatSend;
    if (arrival.digest != expected || arrival.landed || arrival.bytes > totalBytes(call) - call.doneBytes) {
      const int peer = call.peer;
      std::string what = disagreement(expected, context_.rank, arrival.digest, peer);
      waiter_.fail({pealInvalidUsage,
                    fmt::format("{}: the ranks disagree on a call: {}. Rank {} is in {}, rank {} is in {}.",
                                context_.name, what, context_.rank, describe(digestOf(call)), peer,
                                describe(arrival.digest))},
                   peer);
      return false;
    }
    if (!arrival.remote) {
      copyBytes(call.recv + call.doneBytes, arrival.data, arrival.bytes, store_);
    } else if (!link.pull(call.recv + call.doneBytes, 0, arrival.bytes)) {
      return false;  // the next look at the peers' health says why
    }
    call.started = true;
    call.doneBytes += arrival.bytes;
    link.release();  // the arrival ends here
    return true;
  }

  void drain() {
    for (size_t peer = 0; peer < context_.lanes.size(); ++peer) {
      if ((context_.lanes[peer] & kReferenced) != 0) {
        Link& link = context_.endpoint->link(static_cast<int>(peer));
        waiter_.until(static_cast<int>(peer), [&] { return link.drained(); });
      }
    }
    waiter_.untilSettled();
    if (context_.endpoint != nullptr) {
      waiter_.untilReadRight();
    }
  }

  // Sends to oneself meet the receives from oneself in order, by a copy.
  std::optional<Fault> runToSelf() {
    const auto next = [this](size_t from, bool isSend) {
      while (from < calls_.size() && (calls_[from].peer != context_.rank || calls_[from].isSend != isSend)) {
        ++from;
      }
      return from;
    };
    size_t send = next(0, true), receive = next(0, false);
    while (send < calls_.size() && receive < calls_.size() && calls_[send].count == calls_[receive].count &&
           calls_[send].type == calls_[receive].type) {
      copyBytes(calls_[receive].recv, calls_[send].send, totalBytes(calls_[send]), store_);
      for (const size_t done : {send, receive}) {
        calls_[done].started = true;
        calls_[done].doneBytes = totalBytes(calls_[done]);
      }
      send = next(send + 1, true);
      receive = next(receive + 1, false);
    }
    if (send == calls_.size() && receive == calls_.size()) {
      return std::nullopt;
    }
    const auto ofSelf = [this](bool isSend) {
      return std::count_if(calls_.begin(), calls_.end(), [&](const PointToPoint& call) {
        return call.peer == context_.rank && call.isSend == isSend;
      });
    };
    return Fault{{pealInvalidUsage,
                  fmt::format("{}: {} sends to and {} receives from the rank itself in one group; each send "
                              "needs a receive of the same count and data type in the same group.",
                              context_.name, ofSelf(true), ofSelf(false))},
                 context_.rank};
  }

  HostContext& context_;
  std::vector<PointToPoint>& calls_;
  size_t first_ = 0;  // before it all are through
  const Digest digest_;
  Waiter waiter_;
  Store store_ = Store::Cached;
};

}  // namespace

std::optional<Fault> runPointToPoint(HostContext& context, std::vector<PointToPoint>& operations) {
  if (operations.empty()) {
    return std::nullopt;
  }
  return Batch(context, operations).run();
}

}  // namespace peal

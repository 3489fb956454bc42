// Sends and receives of a group, progressed together: no operation of the list waits for another of another
// pair to finish, so any pattern of exchanges that the ranks agree on is free of deadlock.
#include <fmt/format.h>

#include <algorithm>

#include "lib/executor/host/operation.h"
#include "lib/executor/host/wait.h"

namespace peal {
namespace {

// One operation on its way.
struct Transfer {
  PointToPoint* call;
  Digest digest;
  size_t totalBytes;
  size_t doneBytes = 0;
  bool started = false;  // an empty transfer still is one message
  bool finished() const { return started && doneBytes == totalBytes; }
};

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
  Batch(HostContext& context, std::vector<PointToPoint>& calls) : context_(context) {
    transfers_.reserve(calls.size());
    for (PointToPoint& call : calls) {
      transfers_.push_back({&call, digestOf(call), call.count * elementBytes(call.type)});
    }
  }

  std::optional<Fault> run() {
    if (std::optional<Fault> fault = runToSelf()) {
      return fault;
    }
    if (transfers_.empty()) {
      return std::nullopt;
    }
    for (const Transfer& transfer : transfers_) {
      context_.endpoint->announce(transfer.digest, true);
    }
    const Digest digest = transfers_.front().digest;
    Waiter waiter(context_, digest);
    while (!transfers_.empty()) {
      const int peer = transfers_.front().call->peer;
      if (!waiter.until(peer, [&] { return advance(waiter); })) {
        break;
      }
    }
    drain(waiter);
    return waiter.takeFault();
  }

 private:
  // One pass over the list; within a pair and direction only the oldest may move. True if anything did (or
  // failed).
  bool advance(Waiter& waiter) {
    bool moved = false;
    std::vector<std::pair<int, bool>>& busy = busy_;
    busy.clear();
    for (Transfer& transfer : transfers_) {
      const std::pair<int, bool> lane{transfer.call->peer, transfer.call->isSend};
      if (std::find(busy.begin(), busy.end(), lane) != busy.end()) {
        continue;
      }
      while (!transfer.finished() && !waiter.failed() &&
             (transfer.call->isSend ? trySend(transfer) : tryReceive(waiter, transfer))) {
        moved = true;
      }
      if (!transfer.finished()) {
        busy.push_back(lane);
      }
    }
    std::erase_if(transfers_, [](const Transfer& transfer) { return transfer.finished(); });
    return moved || waiter.failed();
  }

  bool trySend(Transfer& transfer) {
    Link& link = context_.endpoint->link(transfer.call->peer);
    const size_t sliceBytes =
        std::min(transfer.totalBytes - transfer.doneBytes, context_.endpoint->slotBytes());
    const std::byte* data = transfer.call->send + transfer.doneBytes;
    if (sliceBytes > 0 && link.canReference(data, sliceBytes)) {
      if (!link.tryPostReference(data, sliceBytes, transfer.digest)) {
        return false;
      }
      noteReference(transfer.call->peer);
    } else {
      std::byte* slot = link.tryStage(sliceBytes);
      if (slot == nullptr) {
        return false;
      }
      copyBytes(slot, data, sliceBytes, Store::Cached);
      link.post(sliceBytes, transfer.digest);
    }
    transfer.started = true;
    transfer.doneBytes += sliceBytes;
    context_.stats.bytesSent[pealStatSend] += sliceBytes;
    ++context_.stats.messages[pealStatSend];
    return true;
  }

  void noteReference(int peer) {
    if (referenced_.empty() || referenced_.back() != peer) {
      referenced_.push_back(peer);
    }
  }

  bool tryReceive(Waiter& waiter, Transfer& transfer) {
    Link& link = context_.endpoint->link(transfer.call->peer);
    Arrival arrival;
    if (!link.tryReceive(arrival)) {
      return false;
    }
    Digest expected = transfer.digest;
    expected.collective = pealStatSend;
    if (arrival.digest != expected || arrival.landed ||
        arrival.bytes > transfer.totalBytes - transfer.doneBytes) {
      const int peer = transfer.call->peer;
      std::string what = disagreement(expected, context_.rank, arrival.digest, peer);
      waiter.fail({pealInvalidUsage,
                   fmt::format("{}: the ranks disagree on a call: {}. Rank {} is in {}, rank {} is in {}.",
                               context_.name, what, context_.rank, describe(transfer.digest), peer,
                               describe(arrival.digest))},
                  peer);
      return false;
    }
    copyBytes(transfer.call->recv + transfer.doneBytes, arrival.data, arrival.bytes,
              storeFor(transfer.totalBytes));
    transfer.started = true;
    transfer.doneBytes += arrival.bytes;
    link.release();
    return true;
  }

  void drain(Waiter& waiter) {
    for (const int peer : referenced_) {
      Link& link = context_.endpoint->link(peer);
      waiter.until(peer, [&] { return link.drained(); });
    }
    waiter.untilSettled();
  }

  // Sends to oneself meet the receives from oneself in order, by a copy.
  std::optional<Fault> runToSelf() {
    const auto toSelf = [this](const Transfer& transfer) { return transfer.call->peer == context_.rank; };
    if (std::none_of(transfers_.begin(), transfers_.end(), toSelf)) {
      return std::nullopt;
    }
    std::vector<PointToPoint*> sends;
    std::vector<PointToPoint*> receives;
    for (const Transfer& transfer : transfers_) {
      if (toSelf(transfer)) {
        (transfer.call->isSend ? sends : receives).push_back(transfer.call);
      }
    }
    std::erase_if(transfers_, toSelf);
    for (size_t i = 0; i < std::max(sends.size(), receives.size()); ++i) {
      if (i >= sends.size() || i >= receives.size() || sends[i]->count != receives[i]->count ||
          sends[i]->type != receives[i]->type) {
        return Fault{
            {pealInvalidUsage,
             fmt::format("{}: {} sends to and {} receives from the rank itself in one group; each send "
                         "needs a receive of the same count and data type in the same group.",
                         context_.name, sends.size(), receives.size())},
            context_.rank};
      }
      const size_t sizeBytes = sends[i]->count * elementBytes(sends[i]->type);
      copyBytes(receives[i]->recv, sends[i]->send, sizeBytes, storeFor(sizeBytes));
    }
    return std::nullopt;
  }

  HostContext& context_;
  std::vector<Transfer> transfers_;
  std::vector<std::pair<int, bool>> busy_;  // of one pass: pairs and directions whose oldest is not through
  std::vector<int> referenced_;
};

}  // namespace

std::optional<Fault> runPointToPoint(HostContext& context, std::vector<PointToPoint>& operations) {
  return Batch(context, operations).run();
}

}  // namespace peal

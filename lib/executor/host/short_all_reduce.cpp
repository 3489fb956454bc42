#include "lib/executor/host/short_all_reduce.h"

#include <cstring>

#include "lib/executor/host/wait.h"

namespace peal {
namespace {

// Longer messages are read in place where they can be, which is the port's business.
constexpr size_t kMostBytes = 4095;

// All messages of the peers: where each term of the sum lies.
bool receiveAll(HostContext& context, Waiter& waiter, const Digest& digest, size_t sizeBytes) {
  for (int step = 1; step < context.size; ++step) {
    const int from = (context.rank + step) % context.size;
    Arrival& room = context.arrivals[static_cast<size_t>(from)];
    Link& link = context.endpoint->link(from);
    const Arrival* arrival = nullptr;
    if (!waiter.until(from, [&] { return (arrival = link.tryPeek(room)) != nullptr; })) {
      return false;
    }
    const bool hasData = !arrival->landed && !arrival->remote;
    if (arrival->digest != digest || arrival->bytes != sizeBytes || !hasData) [[unlikely]] {
      waiter.fail(unexpectedArrival(context, digest, from, sizeBytes, *arrival), from);
      return false;
    }
    context.sources[static_cast<size_t>(from)] = arrival->data;
  }
  return true;
}

}  // namespace

bool isShort(const HostContext& context, const Collective& call) {
  const bool kind = call.kind == pealStatAllReduce || call.kind == pealStatBarrier;
  const size_t sizeBytes = call.count * elementBytes(call.type);
  return kind && call.choice.algorithm == Algorithm::OneShot && context.endpoint != nullptr &&
         sizeBytes <= kMostBytes && sizeBytes <= call.choice.chunkBytes && !call.op.preMultiply &&
         call.epilogue == nullptr;
}

std::optional<Fault> runShortAllReduce(HostContext& context, const Collective& call, const Digest& digest) {
  const size_t sizeBytes = call.count * elementBytes(call.type);
  const auto peers = static_cast<size_t>(context.size) - 1;
  Endpoint& endpoint = *context.endpoint;
  Waiter waiter(context, digest);
  std::byte* slot = endpoint.tryStageAll(sizeBytes);
  if (slot == nullptr) [[unlikely]] {
    endpoint.announce(digest, true);  // waits may last
    waiter.until(-1, [&] { return (slot = endpoint.tryStageAll(sizeBytes)) != nullptr; });
  }
  if (slot != nullptr) {
    if (sizeBytes > 0) {
      std::memcpy(slot, call.send, sizeBytes);
    }
    endpoint.postAll(sizeBytes, digest);
    endpoint.announce(digest, true);  // after the message, which the peers wait for
    context.stats.bytesSent[call.kind] += sizeBytes * peers;
    context.stats.messages[call.kind] += peers;
    if (receiveAll(context, waiter, digest, sizeBytes)) {
      context.sources[static_cast<size_t>(context.rank)] = call.send;
      if (call.count > 0) {
        reduce(call.type, call.op,
               {.sources = context.sources,
                .destinations = {call.recv, nullptr},
                .count = call.count,
                .finish = Finish::Yes});
      }
      for (int step = 1; step < context.size; ++step) {
        // A peer cannot be past this call before this rank's message of the next.
        endpoint.link((context.rank + step) % context.size).releaseQuietly();
      }
      waiter.untilSettled();
    }
  }
  endpoint.announce(digest, false);
  return waiter.takeFault();
}

}  // namespace peal

#include "lib/executor/host/short_all_reduce.h"

#include <cstring>

#include "lib/executor/host/wait.h"

namespace peal {
namespace {

// Longer messages are read in place where they can be, which is the port's business.
constexpr size_t kMostBytes = 4095;

// All messages of the peers, in context.arrivals, and where each term of the sum lies.
bool receiveAll(HostContext& context, Waiter& waiter, const Digest& digest, size_t sizeBytes) {
  for (int step = 1; step < context.size; ++step) {
    const int from = (context.rank + step) % context.size;
    Arrival& arrival = context.arrivals[static_cast<size_t>(from)];
    Link& link = context.endpoint->link(from);
    if (!waiter.until(from, [&] { return link.tryReceive(arrival); })) {
      return false;
    }
    if (arrival.digest != digest || arrival.bytes != sizeBytes || arrival.landed) [[unlikely]] {
      waiter.fail(unexpectedArrival(context, digest, from, sizeBytes, arrival), from);
      return false;
    }
    context.sources[static_cast<size_t>(from)] = arrival.data;
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
  endpoint.announce(digest, true);
  std::byte* slot = nullptr;
  if (waiter.until(-1, [&] { return (slot = endpoint.tryStageAll(sizeBytes)) != nullptr; })) {
    if (sizeBytes > 0) {
      std::memcpy(slot, call.send, sizeBytes);
    }
    endpoint.postAll(sizeBytes, digest);
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
        endpoint.link((context.rank + step) % context.size).release();
      }
      waiter.untilSettled();
    }
  }
  endpoint.announce(digest, false);
  return waiter.takeFault();
}

}  // namespace peal

#include "bench/harness/exchange.h"

#include <fmt/format.h>

#include "bench/harness/arena.h"
#include "bench/harness/gpu.h"

namespace peal::bench {

void throwDamagedRecord(int rank) {
  throw tools::ToolError(
      fmt::format("the report of rank {} came back damaged: pealAllGather delivers wrong bytes.", rank));
}

void gatherBytes(const tools::RankContext& ranks, const void* own, void* all, size_t ownBytes) {
  const auto gather = [&](const void* send, void* receive, pealStream_t stream) {
    tools::check(pealAllGather(send, receive, ownBytes, pealUint8, ranks.comm, stream),
                 "pealAllGather of the reports", ranks.comm);
  };
  if (ranks.device == PEAL_DEVICE_HOST) {
    return gather(own, all, nullptr);
  }
  useDevice(ranks.device);
  DeviceStream stream;
  const size_t allBytes = ownBytes * static_cast<size_t>(ranks.size);
  const Arena send(ownBytes, 0, Placement::Plain, ranks.comm, ranks.device);
  const Arena receive(allBytes, 0, Placement::Plain, ranks.comm, ranks.device);
  copyToDevice(send.data(), own, ownBytes);
  gather(send.data(), receive.data(), stream.handle());
  stream.synchronize();
  checkAsync(ranks);
  copyFromDevice(all, receive.data(), allBytes);
}

void checkAsync(const tools::RankContext& ranks) {
  pealResult_t result = pealSuccess;
  tools::check(pealCommGetAsyncError(ranks.comm, &result), "pealCommGetAsyncError", ranks.comm);
  tools::check(result, "an operation on a stream", ranks.comm);
}

}  // namespace peal::bench

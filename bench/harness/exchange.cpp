#include "bench/harness/exchange.h"

#include <fmt/format.h>

namespace peal::bench {

void throwDamagedRecord(int rank) {
  throw tools::ToolError(
      fmt::format("the report of rank {} came back damaged: pealAllGather delivers wrong bytes.", rank));
}

void checkAsync(const tools::RankContext& ranks) {
  pealResult_t result = pealSuccess;
  tools::check(pealCommGetAsyncError(ranks.comm, &result), "pealCommGetAsyncError", ranks.comm);
  tools::check(result, "an operation on a stream", ranks.comm);
}

RecordExchange::RecordExchange(const tools::RankContext& ranks) : ranks_(ranks) {
  if (ranks.device == PEAL_DEVICE_HOST) {
    return;
  }
  useDevice(ranks.device);
  stream_ = std::make_unique<DeviceStream>();
  send_ = std::make_unique<Arena>(kMostBytes, 0, Placement::Plain, ranks.comm, ranks.device);
  receive_ = std::make_unique<Arena>(kMostBytes * static_cast<size_t>(ranks.size), 0, Placement::Plain,
                                     ranks.comm, ranks.device);
}

void RecordExchange::gatherBytes(const void* own, void* all, size_t ownBytes) {
  const auto gather = [&](const void* send, void* receive, pealStream_t stream) {
    tools::check(pealAllGather(send, receive, ownBytes, pealUint8, ranks_.comm, stream),
                 "pealAllGather of the reports", ranks_.comm);
  };
  if (stream_ == nullptr) {
    return gather(own, all, nullptr);
  }
  copyToDevice(send_->data(), own, ownBytes);
  gather(send_->data(), receive_->data(), stream_->handle());
  stream_->synchronize();
  checkAsync(ranks_);
  copyFromDevice(all, receive_->data(), ownBytes * static_cast<size_t>(ranks_.size));
}

}  // namespace peal::bench

#include "tests/cuda/kernel_transfers.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <random>

#include "peal/peal.h"

namespace peal::cuda::test {

TransferBuffers buffersFor(const Group& group) {
  TransferBuffers buffers;
  std::mt19937_64 random(group.seed);
  for (const Transfer& transfer : group.transfers) {
    buffers.sent.emplace_back(transfer.from, transfer.bytes, group.misalignment);
    buffers.received.emplace_back(transfer.to, transfer.bytes, group.misalignment);
    std::byte* data = buffers.sent.back().host();
    for (size_t i = 0; i < transfer.bytes; ++i) {
      data[i] = static_cast<std::byte>(random());
    }
  }
  return buffers;
}

PointToPointArgs argsFor(const KernelRanks& ranks, const Group& group, const TransferBuffers& buffers,
                         int rank) {
  PointToPointArgs args{};
  args.comm = ranks.view(rank);
  const auto add = [&](size_t i, bool isSend) {
    const Transfer& transfer = group.transfers[i];
    TransferArgs& entry = args.transfers[args.count++];
    entry.peer = isSend ? transfer.to : transfer.from;
    entry.isSend = isSend ? 1 : 0;
    entry.digest.count = transfer.bytes;
    entry.digest.collective = static_cast<uint8_t>(isSend ? pealStatSend : pealStatRecv);
    entry.digest.type = pealInt8;
    entry.data = (isSend ? buffers.sent : buffers.received)[i].device();
    entry.dataAt = isSend && group.references ? reinterpret_cast<uint64_t>(entry.data) : 0;
    entry.bytes = transfer.bytes;
  };
  const bool backwards = group.mixed && rank % 2 == 1;
  // Receives first on odd ranks, so that sends and receives are interleaved differently on both ends.
  for (const bool sends : {!backwards, backwards}) {
    for (size_t i = 0; i < group.transfers.size(); ++i) {
      if ((sends ? group.transfers[i].from : group.transfers[i].to) == rank) {
        add(i, sends);
      }
    }
  }
  return args;
}

std::string runGroup(KernelRanks& ranks, const Group& group) {
  const TransferBuffers buffers = buffersFor(group);
  std::vector<std::function<void()>> kernels(static_cast<size_t>(ranks.size()));
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const auto args = std::make_shared<PointToPointArgs>(argsFor(ranks, group, buffers, rank));
    if (args->count > 0) {
      kernels[static_cast<size_t>(rank)] = [args] { pointToPointKernel()(*args); };
    }
  }
  const cudasim::RunResult result = ranks.run(kernels);
  if (std::string text = ranks.complaint(result); !text.empty()) {
    return text;
  }
  for (size_t i = 0; i < group.transfers.size(); ++i) {
    const Array& sent = buffers.sent[i];
    const Array& received = buffers.received[i];
    for (size_t at = 0; at < group.transfers[i].bytes; ++at) {
      if (sent.host()[at] != received.host()[at]) {
        return fmt::format("transfer {} from rank {} to {}: byte {} of {} is {:#04x}, not {:#04x}", i,
                           group.transfers[i].from, group.transfers[i].to, at, group.transfers[i].bytes,
                           static_cast<int>(received.host()[at]), static_cast<int>(sent.host()[at]));
      }
    }
    if (!sent.frontIntact() || !received.frontIntact()) {
      return fmt::format("transfer {}: bytes in front of a buffer were overwritten", i);
    }
  }
  return {};
}

}  // namespace peal::cuda::test

#include "lib/executor/cuda/faults.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>

namespace peal::cuda {
Digest digestOf(const DigestWords& words) {
  Digest digest;
  digest.count = words.count;
  digest.sequence = words.sequence;
  digest.root = words.root;
  digest.collective = words.collective;
  digest.type = words.type;
  digest.op = words.op;
  digest.algorithm = words.algorithm;
  return digest;
}

namespace {

const char* nameOf(uint32_t protocol) {
  switch (static_cast<Protocol>(protocol)) {
    case Protocol::Simple:
      return "simple";
    case Protocol::LL:
      return "ll";
    case Protocol::LL128:
      return "ll128";
  }
  return "unknown";
}

std::string disagreement(const FaultRecord& record, const FaultReader& reader) {
  const int peer = static_cast<int>(record.peerRank);
  const Digest mine = digestOf(record.expected);
  const Digest theirs = digestOf(record.arrived);
  std::string what = peal::disagreement(mine, reader.rank, theirs, peer);
  if (what.empty() && record.expected.protocol != record.arrived.protocol) {
    what = fmt::format("the protocol is {} on rank {} and {} on rank {} (is PEAL_PROTOCOL the same on both?)",
                       nameOf(record.expected.protocol), reader.rank, nameOf(record.arrived.protocol), peer);
  }
  if (what.empty()) {
    what = fmt::format("a message of {} has {} bytes on rank {} and {} on rank {}", describe(mine),
                       record.expectedBytes, reader.rank, record.arrivedBytes, peer);
  }
  return fmt::format("{}: the ranks disagree on a call: {}. Rank {} is in {}, rank {} is in {}.", reader.name,
                     what, reader.rank, describe(mine), peer, describe(theirs));
}

std::string ownDisagreement(const FaultRecord& record, const FaultReader& reader) {
  return fmt::format(
      "{}: the sends and receives of the rank to itself do not match in one group ({} bytes to "
      "receive, {} sent); each send needs a receive of the same count and data type in the same "
      "group.",
      reader.name, record.expectedBytes, record.arrivedBytes);
}

}  // namespace

std::optional<FaultRecord> readFault(const FaultRecord& board) {
  // Kernels write it: the acquire pairs with report's release in wait.cuh.
  auto& complete = const_cast<uint64_t&>(board.complete);
  if (std::atomic_ref<uint64_t>(complete).load(std::memory_order_acquire) == 0) {
    return std::nullopt;
  }
  FaultRecord record{};
  std::memcpy(&record, &board, sizeof record);
  return record;
}

std::optional<Fault> faultOf(const FaultRecord& record, const FaultReader& reader) {
  const int peer = static_cast<int>(record.peerRank);
  switch (static_cast<FaultKind>(record.kind)) {
    case FaultKind::None:
      return std::nullopt;
    case FaultKind::Stopped:
      if (peer == reader.rank) {
        return std::nullopt;
      }
      return Fault{
          {pealRemoteError,
           fmt::format("{}: rank {} met an error and stopped the communicator while this rank was in "
                       "{}. Rank {}'s own error says why.",
                       reader.name, peer, describe(digestOf(record.expected)), peer)},
          peer};
    case FaultKind::Deadline:
      return Fault{
          {pealTimeout,
           fmt::format("{}: {} on device {} waited {} ms for rank {}, whose part did not come (channel {}). "
                       "Either rank {} did not make this call, or made another one, or its stream waits for "
                       "something that comes later.",
                       reader.name, describe(digestOf(record.expected)), reader.device, reader.timeoutMs,
                       peer, record.channel, peer)},
          peer};
    case FaultKind::Digest:
    case FaultKind::Bytes:
      break;
  }
  const bool own = peer == reader.rank;
  return Fault{{pealInvalidUsage, own ? ownDisagreement(record, reader) : disagreement(record, reader)},
               own ? reader.rank : peer};
}

}  // namespace peal::cuda

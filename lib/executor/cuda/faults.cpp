#include "lib/executor/cuda/faults.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>

#include "lib/executor/cuda/window_notes.h"

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

bool isTransfer(int kind) { return kind == pealStatSend || kind == pealStatRecv; }

// Why the peer's part may not have come.
std::string likelyReason(const FaultRecord& record, const std::optional<DigestWords>& seen) {
  const int64_t peer = record.peerRank;
  if (!seen) {
    return fmt::format(
        "Either rank {} did not make this call, or made another one, or its stream waits for "
        "something that comes later.",
        peer);
  }
  const Digest theirs = digestOf(*seen);
  constexpr const char* kOrder = "Every rank has to make the calls of a communicator in the same order.";
  if (isTransfer(theirs.collective)) {
    return fmt::format(
        "Rank {} is in sends and receives, the first of them a {} of {} {} {} rank {}. {}", peer,
        collectiveName(theirs.collective), theirs.count,
        theirs.type < pealNumTypes ? typeName(static_cast<pealDataType_t>(theirs.type)) : "values",
        theirs.collective == pealStatSend ? "to" : "from", theirs.root, kOrder);
  }
  if (isTransfer(record.expected.collective)) {
    return fmt::format("Rank {} is in {}, to which this rank has not come. {}", peer, describe(theirs),
                       kOrder);
  }
  return fmt::format("Rank {} has come to this call too, and waits for another rank or was stopped.", peer);
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

std::optional<DigestWords> seenIn(const std::byte* notes, const FaultRecord& record) {
  DigestWords transfer{};
  std::memcpy(&transfer, notes + kTransferNoteAt, sizeof transfer);
  if (isTransfer(transfer.collective)) {
    return transfer;
  }
  uint64_t own = record.expected.sequence;
  if (isTransfer(record.expected.collective)) {
    std::memcpy(&own, notes + kOwnSequenceAt, sizeof own);
  }
  Passage passage{};
  std::memcpy(&passage, notes + WindowShape::kPassagesAt + own % kPassages * sizeof passage, sizeof passage);
  const bool came = passage.check != 0 && passage.digest.sequence == static_cast<uint32_t>(own);
  return came ? std::optional(passage.digest) : std::nullopt;
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
           fmt::format(
               "{}: {} on device {} waited {} ms for rank {}, whose part did not come (channel {}). {}",
               reader.name, describe(digestOf(record.expected)), reader.device, reader.timeoutMs, peer,
               record.channel, likelyReason(record, reader.seen))},
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

// Runs a collective: cuts the array into rounds and plays the chosen algorithm over the host port.
#include <unistd.h>

#include <algorithm>

#include "algorithms/pipeline.h"
#include "lib/executor/host/host_port.h"
#include "lib/executor/host/operation.h"
#include "lib/executor/host/short_collectives.h"
#include "lib/executor/selection.h"

namespace peal {
namespace {

constexpr size_t kInPlaceChunkBytes = size_t{2} << 20;
constexpr size_t kMuchSecondCacheBytes = size_t{2} << 20;

Digest digestOf(const Collective& call) {
  Digest digest;
  digest.count = call.count;
  digest.sequence = call.sequence;
  digest.root = call.root;
  digest.collective = static_cast<uint8_t>(call.kind);
  digest.type = static_cast<uint8_t>(call.type);
  const auto op = static_cast<uint8_t>(call.op.preMultiply ? pealNumOps : call.op.kind);
  digest.op = call.epilogue != nullptr ? call.epilogue->digestOp() : call.hasOp ? op : Digest::kNoOp;
  digest.algorithm = static_cast<uint8_t>(call.choice.algorithm);
  return digest;
}

// Two ranks copy half of a broadcast each.
Store storeOf(int kind, size_t arrayBytes) {
  return kind == pealStatAllGather   ? storeForCopy(arrayBytes)
         : kind == pealStatBroadcast ? storeForCopy(arrayBytes / 2)
                                     : storeFor(arrayBytes);
}

HostBuffers buffersOf(const Collective& call, const Blocks& blocks, int rank) {
  HostBuffers buffers{static_cast<const std::byte*>(call.send), 0, static_cast<std::byte*>(call.recv), 0};
  buffers.inStart = call.kind == pealStatAllGather ? blocks.start(rank) : 0;
  buffers.outStart = call.kind == pealStatReduceScatter ? blocks.start(rank) : 0;
  return buffers;
}

// What a two-shot all-reduce does with finished chunks. In stages, each peer gets them by itself. Only where
// `out` is streamed: a chunk that is still in the cache is copied for less than a second result costs.
HostPort::Options::Next nextOf(const Collective& call, int size, Store store) {
  using Next = HostPort::Options::Next;
  if (store == Store::Cached || call.kind != pealStatAllReduce ||
      call.choice.algorithm != Algorithm::TwoShot) {
    return Next::Unknown;
  }
  return size == 2 ? Next::ToOne : call.choice.ahead == 0 ? Next::ToAll : Next::Unknown;
}

// How much of its block a rank finishes at once. Ranks meet once a chunk, and each must have a core then; so
// chunks are large where they can be. That is where nobody stages them: a slot bounds only what goes through
// it.
size_t chunkBytesOf(const HostContext& context, const Collective& call, const Blocks& blocks,
                    HostPort& port) {
  const size_t blockBytes = blocks.longest() * elementBytes(call.type);
  // Asking whether all chunks are handed over in place is a meeting of the ranks, too.
  const bool asks = call.epilogue != nullptr || (context.crowded && call.kind == pealStatAllReduce);
  const bool mayGrow = asks && blockBytes > call.choice.chunkBytes &&
                       call.choice.algorithm == Algorithm::TwoShot && context.endpoint != nullptr &&
                       context.grouping == nullptr;
  return mayGrow && port.allInPlace(blocks) ? std::max(kInPlaceChunkBytes, call.choice.chunkBytes)
                                            : call.choice.chunkBytes;
}

}  // namespace

Store storeForCopy(size_t arrayBytes) {
  static const long secondCacheBytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  const bool much = secondCacheBytes >= static_cast<long>(kMuchSecondCacheBytes);
  return arrayBytes >= (much ? kMuchSecondCacheBytes : kStreamingLeastBytes) ? Store::Streaming
                                                                             : Store::Cached;
}

std::optional<Fault> runCollective(HostContext& context, const Collective& call) {
  if (call.epilogue != nullptr && !call.epilogue->begin()) {
    return std::nullopt;
  }
  const Digest digest = digestOf(call);
  if (isShort(context, call)) {
    return runShort(context, call, digest);
  }
  const Blocks blocks = blocksOf(call.kind, call.choice.algorithm, call.count,
                                 call.starts.empty() ? nullptr : call.starts.data(), context.size);
  const HostBuffers buffers = buffersOf(call, blocks, context.rank);
  const size_t arrayBytes = blocks.total * elementBytes(call.type);
  // In place over a network the results' lines have just been read, and are not read in place by anybody.
  const bool hasRead = context.polled != nullptr && call.send == call.recv;
  const Store store = hasRead ? Store::Cached : storeOf(call.kind, arrayBytes);
  const bool allReduce = call.kind == pealStatAllReduce;
  const bool twoShot = call.choice.algorithm == Algorithm::TwoShot;
  // Of one root's messages, which need not be cut alike on all ranks.
  const bool anyLength = call.kind == pealStatBroadcast && call.choice.algorithm == Algorithm::OneShot &&
                         context.grouping == nullptr && context.polled == nullptr;
  HostPort port(context, digest, call.type, call.op, buffers,
                {.referenceAll = !(allReduce && call.send == call.recv) ||
                                 (context.endpoint != nullptr && context.endpoint->copiesReferences()),
                 .lend = allReduce && twoShot,
                 .next = nextOf(call, context.size, store),
                 .offer = context.reachesAll && call.choice.chunkBytes > context.endpoint->slotBytes(),
                 .anyLength = anyLength,
                 .halve = (twoShot || call.choice.algorithm == Algorithm::OneShot) && call.choice.ahead == 0,
                 .store = store,
                 .epilogue = call.epilogue});
  if (context.endpoint != nullptr) {
    context.endpoint->announce(digest, true);
  }
  const size_t chunkBytes =
      anyLength ? std::max(arrayBytes, call.choice.chunkBytes) : chunkBytesOf(context, call, blocks, port);
  const size_t chunkCount = std::max<size_t>(1, chunkBytes / elementBytes(call.type));
  // One also for an empty array: its digest is compared too.
  const size_t rounds = std::max<size_t>(1, (blocks.longest() + chunkCount - 1) / chunkCount);
  const Choice& choice = call.choice;
  runStages(rounds, stagesOf(call.kind, choice, context.grouping), choice.ahead,
            [&](int stage, size_t round) {
              runStage(port, call.kind, choice, call.root, Round{blocks, round * chunkCount, chunkCount},
                       context.grouping, stage);
            });
  std::optional<Fault> fault = port.finish();
  if (context.endpoint != nullptr) {
    context.endpoint->announce(digest, false);
  }
  return fault;
}

}  // namespace peal

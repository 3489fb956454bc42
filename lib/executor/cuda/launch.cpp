#include "lib/executor/cuda/launch.h"

#include <algorithm>
#include <cstring>

#include "algorithms/cost.h"
#include "lib/executor/selection.h"

namespace peal::cuda {
namespace {

const size_t* startsOf(const Collective& call) { return call.starts.empty() ? nullptr : call.starts.data(); }

Blocks blocksFor(const Collective& call, int size) {
  if (call.kind == pealStatAllReduce && startsOf(call) != nullptr) {  // the fused step: a block per rank
    return {call.starts.back(), size, startsOf(call)};
  }
  return blocksOf(call.kind, call.choice.algorithm, call.count, startsOf(call), size);
}

DigestWords digestOf(const Collective& call) {
  DigestWords digest{};
  digest.count = call.count;
  digest.root = call.root;
  digest.collective = static_cast<uint8_t>(call.kind);
  digest.type = static_cast<uint8_t>(call.type);
  const auto op = static_cast<uint8_t>(call.op.preMultiply ? pealNumOps : call.op.kind);
  digest.op = call.hasOp ? op : Digest::kNoOp;
  digest.algorithm = static_cast<uint8_t>(call.choice.algorithm);
  digest.protocol = static_cast<uint32_t>(call.choice.protocol);
  return digest;
}

DigestWords digestOf(const PointToPoint& call) {
  DigestWords digest{};
  digest.count = call.count;
  digest.root = -1;
  digest.collective = static_cast<uint8_t>(call.isSend ? pealStatSend : pealStatRecv);
  digest.type = static_cast<uint8_t>(call.type);
  digest.op = Digest::kNoOp;
  return digest;
}

AlgorithmId algorithmOf(const Collective& call) {
  using enum AlgorithmId;
  const Algorithm family = call.choice.algorithm;
  const bool ring = family == Algorithm::Ring, tree = family == Algorithm::Tree;
  const bool levels = family == Algorithm::Hierarchical;
  switch (call.kind) {
    case pealStatAllReduce:
      return ring                           ? RingAllReduce
             : levels                       ? HierarchicalAllReduce
             : tree                         ? DoublingAllReduce
             : family == Algorithm::TwoShot ? TwoShotAllReduce
                                            : OneShotAllReduce;
    case pealStatReduceScatter:
      return ring ? RingReduceScatter : levels ? HierarchicalReduceScatter : DirectReduceScatter;
    case pealStatAllGather:
      return ring ? RingAllGather : levels ? HierarchicalAllGather : DirectAllGather;
    case pealStatBroadcast:
      return ring ? RingBroadcast : levels ? HierarchicalBroadcast : tree ? TreeBroadcast : DirectBroadcast;
    case pealStatReduce:
      return ring ? RingReduce : levels ? HierarchicalReduce : tree ? TreeReduce : DirectReduce;
    default:  // barrier
      return tree ? DoublingAllReduce : OneShotAllReduce;
  }
}

// Elements of one message: a message fits the protocol's slot.
size_t chunkCountOf(const CommView& view, const Collective& call) {
  const size_t bytes = std::min(call.choice.chunkBytes, view.shape.payloadBytes(call.choice.protocol));
  return std::max<size_t>(1, bytes / elementBytes(call.type));
}

// One in any case: an empty array's digest is compared too.
size_t roundsOf(const CommView& view, const Collective& call, const Blocks& blocks) {
  const size_t chunk = chunkCountOf(view, call);
  return std::max<size_t>(1, (blocks.longest() + chunk - 1) / chunk);
}

}  // namespace

Extents extentsOf(const Collective& call, int rank, int size) {
  const size_t element = elementBytes(call.type);
  const Blocks blocks = blocksFor(call, size);
  const size_t all = blocks.total * element;
  const size_t own = isScattered(call.kind) ? blocks.block(rank).count * element : 0;
  switch (call.kind) {
    case pealStatReduceScatter:
      return {all, own};
    case pealStatAllGather:
      return {own, all};
    case pealStatBroadcast:
      return {rank == call.root ? all : 0, all};
    case pealStatReduce:
      return {all, rank == call.root ? all : 0};
    default:
      return {all, all};
  }
}

CollectiveArgs argumentsOf(const CommView& view, const Collective& call, const void* deferredScalar,
                           DeviceMemory& memory) {
  const Blocks blocks = blocksFor(call, view.ranks);
  CollectiveArgs args{};
  args.comm = view;
  args.digest = digestOf(call);
  args.kind = call.kind;
  args.algorithm = call.choice.algorithm;
  args.ahead = call.choice.ahead;
  args.root = call.root;
  args.op = call.hasOp ? call.op.kind : pealSum;
  args.preMultiply = call.op.preMultiply ? 1 : 0;
  args.scalar = deferredScalar;
  std::memcpy(&args.scalarBits, call.op.scalar.data(), sizeof args.scalarBits);
  args.in = static_cast<const std::byte*>(call.send);
  args.inStart = call.kind == pealStatAllGather ? blocks.start(view.rank) : 0;
  args.out = static_cast<std::byte*>(call.recv);
  args.outStart = call.kind == pealStatReduceScatter ? blocks.start(view.rank) : 0;
  args.total = blocks.total;
  args.parts = blocks.parts;
  args.hasStarts = blocks.starts != nullptr ? 1 : 0;
  if (blocks.starts != nullptr) {
    std::copy(call.starts.begin(), call.starts.end(), args.starts);
  }
  args.chunkCount = chunkCountOf(view, call);
  if (call.choice.protocol == Protocol::Simple) {
    const Extents extents = extentsOf(call, view.rank, view.ranks);
    for (int peer = 0; peer < view.ranks; ++peer) {
      if (peer != view.rank) {
        args.inAt[peer] = extents.send > 0 ? memory.addressAt(peer, call.send, extents.send) : 0;
        args.outAt[peer] = extents.recv > 0 ? memory.addressAt(peer, call.recv, extents.recv) : 0;
      }
    }
  }
  return args;
}

PointToPointArgs argumentsOf(const CommView& view, const std::vector<PointToPoint>& calls,
                             DeviceMemory& memory) {
  PointToPointArgs args{};
  args.comm = view;
  for (const PointToPoint& call : calls) {
    TransferArgs& transfer = args.transfers[args.count++];
    transfer.peer = call.peer;
    transfer.isSend = call.isSend ? 1 : 0;
    transfer.digest = digestOf(call);
    // Kernels only read what is sent.
    transfer.data = call.isSend ? const_cast<std::byte*>(call.send) : call.recv;
    transfer.bytes = call.count * elementBytes(call.type);
    if (call.isSend && call.peer != view.rank && transfer.bytes > 0) {
      transfer.dataAt = memory.addressAt(call.peer, call.send, transfer.bytes);
    }
  }
  return args;
}

void count(pealCommStats_t& stats, const CommView& view, const Grouping& nodes, const Collective& call) {
  const Blocks blocks = blocksFor(call, view.ranks);
  // Trees run flat on one node.
  const Grouping grouping = nodes.nodes > 1 ? nodes : Grouping::apart(view.ranks);
  const Traffic traffic = trafficOf(algorithmOf(call), blocks, grouping, view.rank, call.root).all();
  ++stats.calls[call.kind];
  stats.bytesSent[call.kind] += traffic.elements * elementBytes(call.type);
  stats.messages[call.kind] += traffic.messages * roundsOf(view, call, blocks);
}

void count(pealCommStats_t& stats, const CommView& view, const PointToPoint& call) {
  const int kind = call.isSend ? pealStatSend : pealStatRecv;
  ++stats.calls[kind];
  if (call.isSend && call.peer != view.rank) {
    const size_t bytes = call.count * elementBytes(call.type);
    const size_t slice = view.shape.payloadBytes(Protocol::Simple);
    stats.bytesSent[kind] += bytes;
    stats.messages[kind] += std::max<size_t>(1, (bytes + slice - 1) / slice);
  }
}

}  // namespace peal::cuda

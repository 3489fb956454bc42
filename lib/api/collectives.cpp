// C entry points: collectives, point to point, groups and reductions with a scalar. Arguments are checked
// here; what they mean is lib/comm's.
#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "lib/api/request.h"

using namespace peal;
using namespace peal::api;

namespace {

// Checks what all collectives share and issues. describeExtents fills in the extents and what in place means.
template <class F>
pealResult_t submit(Request& request, F&& describeExtents) {
  return guarded([&]() -> Result<void> {
    return noteInGroup([&]() -> Result<void> {
      PEAL_TRY(checkComm(request.function, request.comm));
      StreamRef stream;
      if (request.stream != nullptr || request.comm->comm->onDevice()) {
        Result<StreamRef> given = streamFor(request.function, *request.comm, request.stream);
        if (!given) {
          return given.error();
        }
        stream = std::move(*given);
      }
      PEAL_TRY(checkTypeAndOp(request));
      PEAL_TRY(describeExtents(request));
      PEAL_TRY(checkExtents(request));
      if (Group& group = Group::ofThisThread(); group.active()) {
        group.add(request.comm->comm, stream, std::move(request.call));
        return {};
      }
      return issueAlone(*request.comm, stream, request.call);
    }());
  });
}

// The blocks of the v-forms, whose counts the call keeps.
Result<RankBlocks> blocksOf(Request& request, const size_t counts[]) {
  if (counts == nullptr) {
    return wrong(request, "counts is NULL.");
  }
  RankBlocks blocks{.total = 0, .before = 0, .own = counts[rankOf(request)]};
  for (size_t i = 0; i < sizeOf(request); ++i) {
    if (counts[i] > std::numeric_limits<size_t>::max() / 16 - blocks.total) {
      return wrong(request,
                   fmt::format("counts[{}] is {}: the sum is more than the address space.", i, counts[i]));
    }
    blocks.before += i < rankOf(request) ? counts[i] : 0;
    blocks.total += counts[i];
  }
  request.call.counts.assign(counts, counts + sizeOf(request));
  return blocks;
}

// All blocks are sent, this rank's is received. In place: there.
Result<void> scatters(Request& request, const Result<RankBlocks>& blocks) {
  if (!blocks) {
    return blocks.error();
  }
  const CollectiveCall& call = request.call;
  request.sendElements = blocks->total;
  request.recvElements = blocks->own;
  const bool inPlace = ownBlock(call.send, *blocks, call.type) == call.recv;
  request.inPlace = inPlace ? static_cast<const std::byte*>(call.send) : nullptr;
  return {};
}

// This rank's block is sent, all are received. In place: from there.
Result<void> gathers(Request& request, const Result<RankBlocks>& blocks) {
  if (!blocks) {
    return blocks.error();
  }
  request.sendElements = blocks->own;
  request.recvElements = blocks->total;
  request.inPlace = ownBlock(request.call.recv, *blocks, request.call.type);
  return {};
}

// Send and recv are whole arrays. In place: the same.
Result<void> spans(Request& request, size_t sendElements, size_t recvElements) {
  request.sendElements = sendElements;
  request.recvElements = recvElements;
  request.inPlace = static_cast<const std::byte*>(request.call.recv);
  return {};
}

}  // namespace

pealResult_t pealAllReduce(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                           pealRedOp_t op, pealComm_t comm, pealStream_t stream) {
  Request request =
      requestOf("pealAllReduce", pealStatAllReduce, sendbuff, recvbuff, count, datatype, comm, stream);
  return submit(reducing(request, op), [&](Request& r) { return spans(r, count, count); });
}

pealResult_t pealReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               pealDataType_t datatype, pealRedOp_t op, pealComm_t comm,
                               pealStream_t stream) {
  Request request = requestOf("pealReduceScatter", pealStatReduceScatter, sendbuff, recvbuff, recvcount,
                              datatype, comm, stream);
  return submit(reducing(request, op), [&](Request& r) { return scatters(r, equalBlocks(r, recvcount)); });
}

pealResult_t pealAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, pealDataType_t datatype,
                           pealComm_t comm, pealStream_t stream) {
  Request request =
      requestOf("pealAllGather", pealStatAllGather, sendbuff, recvbuff, sendcount, datatype, comm, stream);
  return submit(request, [&](Request& r) { return gathers(r, equalBlocks(r, sendcount)); });
}

pealResult_t pealReduceScatterV(const void* sendbuff, void* recvbuff, const size_t counts[],
                                pealDataType_t datatype, pealRedOp_t op, pealComm_t comm,
                                pealStream_t stream) {
  Request request =
      requestOf("pealReduceScatterV", pealStatReduceScatter, sendbuff, recvbuff, 0, datatype, comm, stream);
  return submit(reducing(request, op), [&](Request& r) { return scatters(r, blocksOf(r, counts)); });
}

pealResult_t pealAllGatherV(const void* sendbuff, void* recvbuff, const size_t counts[],
                            pealDataType_t datatype, pealComm_t comm, pealStream_t stream) {
  Request request =
      requestOf("pealAllGatherV", pealStatAllGather, sendbuff, recvbuff, 0, datatype, comm, stream);
  return submit(request, [&](Request& r) { return gathers(r, blocksOf(r, counts)); });
}

pealResult_t pealBroadcast(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                           int root, pealComm_t comm, pealStream_t stream) {
  Request request =
      requestOf("pealBroadcast", pealStatBroadcast, sendbuff, recvbuff, count, datatype, comm, stream);
  return submit(rootedAt(request, root), [&](Request& r) -> Result<void> {
    PEAL_TRY(checkRoot(r));
    return spans(r, r.comm->comm->rank() == root ? count : 0, count);
  });
}

pealResult_t pealBcast(void* buff, size_t count, pealDataType_t datatype, int root, pealComm_t comm,
                       pealStream_t stream) {
  return pealBroadcast(buff, buff, count, datatype, root, comm, stream);
}

pealResult_t pealReduce(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                        pealRedOp_t op, int root, pealComm_t comm, pealStream_t stream) {
  Request request =
      requestOf("pealReduce", pealStatReduce, sendbuff, recvbuff, count, datatype, comm, stream);
  return submit(reducing(rootedAt(request, root), op), [&](Request& r) -> Result<void> {
    PEAL_TRY(checkRoot(r));
    return spans(r, count, r.comm->comm->rank() == root ? count : 0);
  });
}

pealResult_t pealBarrier(pealComm_t comm, pealStream_t stream) {
  Request request = requestOf("pealBarrier", pealStatBarrier, nullptr, nullptr, 0, pealUint8, comm, stream);
  return submit(request, [](Request&) { return Result<void>(); });
}

// ---- point to point -------------------------------------------------------------------------------------

namespace {

// Whether nothing can be wrong with a transfer: all but a few are so, and need no more checks.
bool isPlain(const PointToPoint& call, int size) {
  const void* buffer = call.isSend ? static_cast<const void*>(call.send) : call.recv;
  return call.type >= 0 && call.type < pealNumTypes && buffer != nullptr && call.peer >= 0 &&
         call.peer < size && call.count < size_t{1} << 48;
}

Result<void> checkTransfer(const char* function, const PointToPoint& call, pealComm* comm,
                           pealStream* stream) {
  Request request = requestOf(function, call.isSend ? pealStatSend : pealStatRecv, call.send, call.recv,
                              call.count, call.type, comm, stream);
  (call.isSend ? request.sendElements : request.recvElements) = call.count;
  PEAL_TRY(checkTypeAndOp(request));
  PEAL_TRY(checkExtents(request));
  const int size = comm->comm->size();
  if (call.peer < 0 || call.peer >= size) {
    return wrong(request, fmt::format("peer is {}; legal are 0 to {}.", call.peer, size - 1));
  }
  if (!Group::ofThisThread().active() && call.peer == comm->comm->rank()) {
    return wrong(request, "a rank sends to itself only inside a group that has the matching call too.");
  }
  return {};
}

pealResult_t submit(const char* function, const PointToPoint& call, pealComm* comm, pealStream* stream) {
  return guarded([&]() -> Result<void> {
    return noteInGroup([&]() -> Result<void> {
      PEAL_TRY(checkComm(function, comm));
      StreamRef where;
      if (stream != nullptr) {
        Result<StreamRef> given = streamFor(function, *comm, stream);
        if (!given) {
          return given.error();
        }
        where = std::move(*given);
      }
      Group& group = Group::ofThisThread();
      if (!isPlain(call, comm->comm->size()) || (!group.active() && call.peer == comm->comm->rank())) {
        PEAL_TRY(checkTransfer(function, call, comm, stream));
      }
      if (group.active()) {
        group.add(comm->comm, where, call);
        return {};
      }
      std::vector<PointToPoint> alone{call};
      return issueAlone(*comm, where, alone);
    }());
  });
}

}  // namespace

pealResult_t pealSend(const void* sendbuff, size_t count, pealDataType_t datatype, int peer, pealComm_t comm,
                      pealStream_t stream) {
  return submit("pealSend",
                {.isSend = true,
                 .send = static_cast<const std::byte*>(sendbuff),
                 .count = count,
                 .type = datatype,
                 .peer = peer},
                comm, stream);
}

pealResult_t pealRecv(void* recvbuff, size_t count, pealDataType_t datatype, int peer, pealComm_t comm,
                      pealStream_t stream) {
  return submit("pealRecv",
                {.recv = static_cast<std::byte*>(recvbuff), .count = count, .type = datatype, .peer = peer},
                comm, stream);
}

// ---- groups and scalars ---------------------------------------------------------------------------------

pealResult_t pealGroupStart() {
  return guarded([]() -> Result<void> {
    Group::ofThisThread().start();
    return {};
  });
}

pealResult_t pealGroupEnd() {
  return guarded([] { return Group::ofThisThread().end(); });
}

pealResult_t pealRedOpCreatePreMulSum(pealRedOp_t* op, void* scalar, pealDataType_t datatype,
                                      pealScalarResidence_t residence, pealComm_t comm) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkComm("pealRedOpCreatePreMulSum", comm));
    if (op == nullptr || scalar == nullptr) {
      return nullArgument("pealRedOpCreatePreMulSum", op == nullptr ? "op" : "scalar");
    }
    if (datatype < 0 || datatype >= pealNumTypes) {
      return Error{pealInvalidArgument,
                   fmt::format("pealRedOpCreatePreMulSum: datatype is {}; legal are 0 to {}.",
                               static_cast<int>(datatype), pealNumTypes - 1)};
    }
    UserOp made;
    made.type = datatype;
    if (residence == pealScalarHostImmediate) {
      std::memcpy(made.scalar.data(), scalar, elementBytes(datatype));
    } else if (residence == pealScalarDevice) {
      made.deferred = scalar;
    } else {
      return Error{
          pealInvalidArgument,
          fmt::format("pealRedOpCreatePreMulSum: residence is {}; legal are pealScalarDevice (0) and "
                      "pealScalarHostImmediate (1).",
                      static_cast<int>(residence))};
    }
    Result<pealRedOp_t> added = comm->comm->addOp(made);
    if (!added) {
      return added.error();
    }
    *op = *added;
    return {};
  });
}

pealResult_t pealRedOpDestroy(pealRedOp_t op, pealComm_t comm) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkComm("pealRedOpDestroy", comm));
    return comm->comm->removeOp(op);
  });
}

// C entry points: collectives, point to point, groups and reductions with a scalar. Arguments are checked
// here; what they mean is lib/comm's.
#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "lib/api/api.h"
#include "lib/comm/group.h"

using namespace peal;
using namespace peal::api;

namespace {

// One call on its way through the checks.
struct Request {
  const char* function;
  pealComm* comm;
  pealStream* stream;
  CollectiveCall call;
  size_t sendElements = 0;  // extents of the buffers on this rank; 0: not used here
  size_t recvElements = 0;
  const std::byte* inPlace = nullptr;  // where send may lie when it overlaps recv; nullptr: nowhere
};

// What all calls have.
Request requestOf(const char* function, int kind, const void* send, void* recv, size_t count,
                  pealDataType_t type, pealComm* comm, pealStream* stream) {
  Request request{.function = function, .comm = comm, .stream = stream, .call = {}};
  request.call.kind = kind;
  request.call.send = send;
  request.call.recv = recv;
  request.call.count = count;
  request.call.type = type;
  return request;
}

// These change the request where it lies: nothing is moved on the way of a call.
Request& reducing(Request& request, pealRedOp_t op) {
  request.call.op = op;
  request.call.hasOp = true;
  return request;
}

Request& rootedAt(Request& request, int root) {
  request.call.root = root;
  return request;
}

Error wrong(const Request& request, const std::string& what) {
  return {pealInvalidArgument,
          fmt::format("{} on {}: {}", request.function, request.comm->comm->name(), what)};
}

Result<void> checkTypeAndOp(const Request& request) {
  const CollectiveCall& call = request.call;
  if (call.type < 0 || call.type >= pealNumTypes) {
    return wrong(request, fmt::format("datatype is {}; legal are 0 to {}.", static_cast<int>(call.type),
                                      pealNumTypes - 1));
  }
  if (call.hasOp && (call.op < 0 || call.op >= pealNumOps)) {
    PEAL_TRY(request.comm->comm->checkOp(call.op, call.type));
  }
  return {};
}

Result<void> checkExtents(const Request& request) {
  const size_t element = elementBytes(request.call.type);
  const size_t most = static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) / element;
  if (request.sendElements > most || request.recvElements > most) {
    return wrong(request, fmt::format("the array has {} elements of {} bytes, more than the address space.",
                                      std::max(request.sendElements, request.recvElements), element));
  }
  const auto* send = static_cast<const std::byte*>(request.call.send);
  const auto* recv = static_cast<const std::byte*>(request.call.recv);
  if (request.sendElements > 0 && send == nullptr) {
    return wrong(request, fmt::format("sendbuff is NULL and {} elements are to be read from it.",
                                      request.sendElements));
  }
  if (request.recvElements > 0 && recv == nullptr) {
    return wrong(request, fmt::format("recvbuff is NULL and {} elements are to be written to it.",
                                      request.recvElements));
  }
  const size_t sendBytes = request.sendElements * element;
  const size_t recvBytes = request.recvElements * element;
  const bool overlap = send < recv + recvBytes && recv < send + sendBytes;
  if (sendBytes > 0 && recvBytes > 0 && overlap && send != request.inPlace) {
    return wrong(
        request,
        fmt::format("sendbuff ({} bytes at {}) and recvbuff ({} bytes at {}) overlap, and not in "
                    "the way that in place means for this call.",
                    sendBytes, static_cast<const void*>(send), recvBytes, static_cast<const void*>(recv)));
  }
  return {};
}

Result<void> checkRoot(const Request& request) {
  const int size = request.comm->comm->size();
  if (request.call.root < 0 || request.call.root >= size) {
    return wrong(request, fmt::format("root is {}; legal are 0 to {}.", request.call.root, size - 1));
  }
  return {};
}

// Issues a checked call, a CollectiveCall or a list of PointToPoint: onto the stream, or now.
template <class Call>
Result<void> issueAlone(pealComm& handle, const StreamRef& stream, Call& call) {
  const std::shared_ptr<Communicator>& comm = handle.comm;
  const CommIssue issue(handle);
  if (comm->onDevice()) {
    return comm->issueOnDevice(call, stream.cuda);
  }
  if (stream.host == nullptr) {
    return comm->runNow(call);
  }
  Result<Communicator::Prepared> prepared = comm->prepare(call);
  if (!prepared) {
    return prepared.error();
  }
  enqueue(stream.host, comm, std::move(*prepared));
  return {};
}

// A failure inside a group makes the whole group fail at its end.
Result<void> noteInGroup(Result<void> result) {
  if (!result) {
    if (Group& group = Group::ofThisThread(); group.active()) {
      group.fail(result.error());
    }
  }
  return result;
}

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

size_t rankOf(const Request& request) { return static_cast<size_t>(request.comm->comm->rank()); }
size_t sizeOf(const Request& request) { return static_cast<size_t>(request.comm->comm->size()); }

// Which part of an array of all ranks' blocks is this rank's, in elements.
struct Blocks {
  size_t total;
  size_t before;  // of ranks before this one
  size_t own;
};

Result<Blocks> equalBlocks(const Request& request, size_t count) {
  if (count > std::numeric_limits<size_t>::max() / 16 / sizeOf(request)) {
    return wrong(request, fmt::format("{} elements on each of {} ranks are more than the address space.",
                                      count, sizeOf(request)));
  }
  return Blocks{.total = count * sizeOf(request), .before = count * rankOf(request), .own = count};
}

// The blocks of the v-forms, whose counts the call keeps.
Result<Blocks> blocksOf(Request& request, const size_t counts[]) {
  if (counts == nullptr) {
    return wrong(request, "counts is NULL.");
  }
  Blocks blocks{.total = 0, .before = 0, .own = counts[rankOf(request)]};
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

// Where the block of this rank begins in an array of all blocks; nullptr without an array.
const std::byte* ownBlock(const void* array, const Blocks& blocks, pealDataType_t type) {
  return array != nullptr ? static_cast<const std::byte*>(array) + blocks.before * elementBytes(type)
                          : nullptr;
}

// All blocks are sent, this rank's is received. In place: there.
Result<void> scatters(Request& request, const Result<Blocks>& blocks) {
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
Result<void> gathers(Request& request, const Result<Blocks>& blocks) {
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

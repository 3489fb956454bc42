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

Result<void> checkHandles(const char* function, const pealComm* comm, const pealStream* stream) {
  PEAL_TRY(checkComm(function, comm));
  return stream == nullptr ? Result<void>() : checkStream(function, stream);
}

std::shared_ptr<HostStream> streamOf(const pealStream* stream) {
  return stream != nullptr ? stream->stream : nullptr;
}

// Issues a checked call: into the group, onto the stream, or now.
Result<void> issue(Request& request) {
  Group& group = Group::ofThisThread();
  const std::shared_ptr<Communicator>& comm = request.comm->comm;
  if (group.active()) {
    group.add(comm, streamOf(request.stream), std::move(request.call));
    return {};
  }
  if (request.stream == nullptr) {
    const CommUse use(*request.comm);
    return comm->runNow(request.call);
  }
  Result<Communicator::Prepared> prepared = comm->prepare(request.call);
  if (!prepared) {
    return prepared.error();
  }
  enqueue(request.stream->stream, comm, std::move(*prepared));
  return {};
}

// A failure inside a group makes the whole group fail at its end.
Result<void> noteInGroup(Result<void> result) {
  Group& group = Group::ofThisThread();
  if (!result && group.active()) {
    group.fail(result.error());
  }
  return result;
}

// Checks what all collectives share and issues. describeExtents fills in the extents and what in place means.
template <class F>
pealResult_t submit(Request request, F&& describeExtents) {
  return guarded([&]() -> Result<void> {
    return noteInGroup([&]() -> Result<void> {
      PEAL_TRY(checkHandles(request.function, request.comm, request.stream));
      PEAL_TRY(checkTypeAndOp(request));
      PEAL_TRY(describeExtents(request));
      PEAL_TRY(checkExtents(request));
      return issue(request);
    }());
  });
}

size_t rankOf(const Request& request) { return static_cast<size_t>(request.comm->comm->rank()); }
size_t sizeOf(const Request& request) { return static_cast<size_t>(request.comm->comm->size()); }

// count * ranks, or an error if that does not fit.
Result<size_t> timesRanks(const Request& request, size_t count) {
  if (count > std::numeric_limits<size_t>::max() / 16 / sizeOf(request)) {
    return wrong(request, fmt::format("{} elements on each of {} ranks are more than the address space.",
                                      count, sizeOf(request)));
  }
  return count * sizeOf(request);
}

const std::byte* at(const void* base, size_t elements, pealDataType_t type) {
  return static_cast<const std::byte*>(base) + elements * elementBytes(type);
}

// Sum of the v-forms' counts, and of those before this rank.
Result<std::pair<size_t, size_t>> vExtents(const Request& request, const size_t counts[]) {
  if (counts == nullptr) {
    return wrong(request, "counts is NULL.");
  }
  size_t total = 0;
  size_t before = 0;
  for (size_t i = 0; i < sizeOf(request); ++i) {
    if (counts[i] > std::numeric_limits<size_t>::max() / 16 - total) {
      return wrong(request,
                   fmt::format("counts[{}] is {}: the sum is more than the address space.", i, counts[i]));
    }
    before += i < rankOf(request) ? counts[i] : 0;
    total += counts[i];
  }
  return std::pair{total, before};
}

}  // namespace

pealResult_t pealAllReduce(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                           pealRedOp_t op, pealComm_t comm, pealStream_t stream) {
  Request request{.function = "pealAllReduce",
                  .comm = comm,
                  .stream = stream,
                  .call = {.kind = pealStatAllReduce,
                           .send = sendbuff,
                           .recv = recvbuff,
                           .count = count,
                           .counts = {},
                           .type = datatype,
                           .op = op,
                           .hasOp = true}};
  return submit(std::move(request), [&](Request& r) -> Result<void> {
    r.sendElements = r.recvElements = count;
    r.inPlace = static_cast<const std::byte*>(recvbuff);
    return {};
  });
}

pealResult_t pealReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               pealDataType_t datatype, pealRedOp_t op, pealComm_t comm,
                               pealStream_t stream) {
  Request request{.function = "pealReduceScatter",
                  .comm = comm,
                  .stream = stream,
                  .call = {.kind = pealStatReduceScatter,
                           .send = sendbuff,
                           .recv = recvbuff,
                           .count = recvcount,
                           .counts = {},
                           .type = datatype,
                           .op = op,
                           .hasOp = true}};
  return submit(std::move(request), [&](Request& r) -> Result<void> {
    Result<size_t> total = timesRanks(r, recvcount);
    if (!total) {
      return total.error();
    }
    r.sendElements = *total;
    r.recvElements = recvcount;
    const auto* recv = static_cast<const std::byte*>(recvbuff);
    const bool inPlace = sendbuff != nullptr && at(sendbuff, rankOf(r) * recvcount, datatype) == recv;
    r.inPlace = inPlace ? static_cast<const std::byte*>(sendbuff) : nullptr;
    return {};
  });
}

pealResult_t pealAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, pealDataType_t datatype,
                           pealComm_t comm, pealStream_t stream) {
  Request request{.function = "pealAllGather",
                  .comm = comm,
                  .stream = stream,
                  .call = {.kind = pealStatAllGather,
                           .send = sendbuff,
                           .recv = recvbuff,
                           .count = sendcount,
                           .counts = {},
                           .type = datatype}};
  return submit(std::move(request), [&](Request& r) -> Result<void> {
    Result<size_t> total = timesRanks(r, sendcount);
    if (!total) {
      return total.error();
    }
    r.sendElements = sendcount;
    r.recvElements = *total;
    r.inPlace = recvbuff != nullptr ? at(recvbuff, rankOf(r) * sendcount, datatype) : nullptr;
    return {};
  });
}

pealResult_t pealReduceScatterV(const void* sendbuff, void* recvbuff, const size_t counts[],
                                pealDataType_t datatype, pealRedOp_t op, pealComm_t comm,
                                pealStream_t stream) {
  Request request{.function = "pealReduceScatterV",
                  .comm = comm,
                  .stream = stream,
                  .call = {.kind = pealStatReduceScatter,
                           .send = sendbuff,
                           .recv = recvbuff,
                           .counts = {},
                           .type = datatype,
                           .op = op,
                           .hasOp = true}};
  return submit(std::move(request), [&](Request& r) -> Result<void> {
    Result<std::pair<size_t, size_t>> extents = vExtents(r, counts);
    if (!extents) {
      return extents.error();
    }
    r.call.counts.assign(counts, counts + sizeOf(r));
    r.sendElements = extents->first;
    r.recvElements = counts[rankOf(r)];
    const auto* recv = static_cast<const std::byte*>(recvbuff);
    const bool inPlace = sendbuff != nullptr && at(sendbuff, extents->second, datatype) == recv;
    r.inPlace = inPlace ? static_cast<const std::byte*>(sendbuff) : nullptr;
    return {};
  });
}

pealResult_t pealAllGatherV(const void* sendbuff, void* recvbuff, const size_t counts[],
                            pealDataType_t datatype, pealComm_t comm, pealStream_t stream) {
  Request request{
      .function = "pealAllGatherV",
      .comm = comm,
      .stream = stream,
      .call = {
          .kind = pealStatAllGather, .send = sendbuff, .recv = recvbuff, .counts = {}, .type = datatype}};
  return submit(std::move(request), [&](Request& r) -> Result<void> {
    Result<std::pair<size_t, size_t>> extents = vExtents(r, counts);
    if (!extents) {
      return extents.error();
    }
    r.call.counts.assign(counts, counts + sizeOf(r));
    r.sendElements = counts[rankOf(r)];
    r.recvElements = extents->first;
    r.inPlace = recvbuff != nullptr ? at(recvbuff, extents->second, datatype) : nullptr;
    return {};
  });
}

pealResult_t pealBroadcast(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                           int root, pealComm_t comm, pealStream_t stream) {
  Request request{.function = "pealBroadcast",
                  .comm = comm,
                  .stream = stream,
                  .call = {.kind = pealStatBroadcast,
                           .send = sendbuff,
                           .recv = recvbuff,
                           .count = count,
                           .counts = {},
                           .type = datatype,
                           .root = root}};
  return submit(std::move(request), [&](Request& r) -> Result<void> {
    PEAL_TRY(checkRoot(r));
    r.sendElements = r.comm->comm->rank() == root ? count : 0;
    r.recvElements = count;
    r.inPlace = static_cast<const std::byte*>(recvbuff);
    return {};
  });
}

pealResult_t pealBcast(void* buff, size_t count, pealDataType_t datatype, int root, pealComm_t comm,
                       pealStream_t stream) {
  return pealBroadcast(buff, buff, count, datatype, root, comm, stream);
}

pealResult_t pealReduce(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                        pealRedOp_t op, int root, pealComm_t comm, pealStream_t stream) {
  Request request{.function = "pealReduce",
                  .comm = comm,
                  .stream = stream,
                  .call = {.kind = pealStatReduce,
                           .send = sendbuff,
                           .recv = recvbuff,
                           .count = count,
                           .counts = {},
                           .type = datatype,
                           .op = op,
                           .hasOp = true,
                           .root = root}};
  return submit(std::move(request), [&](Request& r) -> Result<void> {
    PEAL_TRY(checkRoot(r));
    r.sendElements = count;
    r.recvElements = r.comm->comm->rank() == root ? count : 0;
    r.inPlace = static_cast<const std::byte*>(recvbuff);
    return {};
  });
}

pealResult_t pealBarrier(pealComm_t comm, pealStream_t stream) {
  Request request{.function = "pealBarrier",
                  .comm = comm,
                  .stream = stream,
                  .call = {.kind = pealStatBarrier, .counts = {}, .type = pealUint8}};
  return submit(std::move(request), [](Request&) { return Result<void>(); });
}

// ---- point to point -------------------------------------------------------------------------------------

namespace {

pealResult_t submit(const char* function, const PointToPoint& call, pealComm* comm, pealStream* stream) {
  return guarded([&]() -> Result<void> {
    return noteInGroup([&]() -> Result<void> {
      PEAL_TRY(checkHandles(function, comm, stream));
      Request request{.function = function,
                      .comm = comm,
                      .stream = stream,
                      .call = {.kind = call.isSend ? pealStatSend : pealStatRecv,
                               .send = call.send,
                               .recv = call.recv,
                               .count = call.count,
                               .counts = {},
                               .type = call.type}};
      (call.isSend ? request.sendElements : request.recvElements) = call.count;
      PEAL_TRY(checkTypeAndOp(request));
      PEAL_TRY(checkExtents(request));
      const int size = comm->comm->size();
      if (call.peer < 0 || call.peer >= size) {
        return wrong(request, fmt::format("peer is {}; legal are 0 to {}.", call.peer, size - 1));
      }
      Group& group = Group::ofThisThread();
      if (group.active()) {
        group.add(comm->comm, streamOf(stream), call);
        return {};
      }
      if (call.peer == comm->comm->rank()) {
        return wrong(request, "a rank sends to itself only inside a group that has the matching call too.");
      }
      if (stream == nullptr) {
        const CommUse use(*comm);
        return comm->comm->runNow(std::vector<PointToPoint>{call});
      }
      Result<Communicator::Prepared> prepared = comm->comm->prepare(std::vector<PointToPoint>{call});
      if (!prepared) {
        return prepared.error();
      }
      enqueue(stream->stream, comm->comm, std::move(*prepared));
      return {};
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

// One call of the API on its way through the checks of its arguments.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "lib/api/api.h"
#include "lib/comm/group.h"

namespace peal::api {

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
inline Request requestOf(const char* function, int kind, const void* send, void* recv, size_t count,
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
inline Request& reducing(Request& request, pealRedOp_t op) {
  request.call.op = op;
  request.call.hasOp = true;
  return request;
}

inline Request& rootedAt(Request& request, int root) {
  request.call.root = root;
  return request;
}

inline Error wrong(const Request& request, const std::string& what) {
  return {pealInvalidArgument,
          fmt::format("{} on {}: {}", request.function, request.comm->comm->name(), what)};
}

inline Result<void> checkTypeAndOp(const Request& request) {
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

inline Result<void> checkExtents(const Request& request) {
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

inline Result<void> checkRoot(const Request& request) {
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
inline Result<void> noteInGroup(Result<void> result) {
  if (!result) {
    if (Group& group = Group::ofThisThread(); group.active()) {
      group.fail(result.error());
    }
  }
  return result;
}

inline size_t rankOf(const Request& request) { return static_cast<size_t>(request.comm->comm->rank()); }
inline size_t sizeOf(const Request& request) { return static_cast<size_t>(request.comm->comm->size()); }

// Which part of an array of all ranks' blocks is this rank's, in elements.
struct RankBlocks {
  size_t total;
  size_t before;  // of ranks before this one
  size_t own;
};

inline Result<RankBlocks> equalBlocks(const Request& request, size_t count) {
  if (count > std::numeric_limits<size_t>::max() / 16 / sizeOf(request)) {
    return wrong(request, fmt::format("{} elements on each of {} ranks are more than the address space.",
                                      count, sizeOf(request)));
  }
  return RankBlocks{.total = count * sizeOf(request), .before = count * rankOf(request), .own = count};
}

// Where the block of this rank begins in an array of all blocks; nullptr without an array.
inline const std::byte* ownBlock(const void* array, const RankBlocks& blocks, pealDataType_t type) {
  return array != nullptr ? static_cast<const std::byte*>(array) + blocks.before * elementBytes(type)
                          : nullptr;
}

}  // namespace peal::api

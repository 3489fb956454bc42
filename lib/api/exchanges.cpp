// C entry points: all-to-all, gather and scatter, each a list of sends and receives. Everything is checked
// before the first of them, so that a call that is wrong sends nothing.
#include <fmt/format.h>

#include <vector>

#include "lib/api/request.h"

using namespace peal;
using namespace peal::api;

namespace {

// The sends and receives of a checked call, in terms of its count.
class Transfers {
 public:
  explicit Transfers(const Request& request)
      : call_(request.call), bytes_(request.call.count * elementBytes(request.call.type)) {}

  // Share `share` of the send buffer.
  void send(int share, int peer) {
    list_.push_back({.isSend = true,
                     .send = static_cast<const std::byte*>(call_.send) + offset(share),
                     .count = call_.count,
                     .type = call_.type,
                     .peer = peer});
  }
  void receive(int share, int peer) {
    list_.push_back({.recv = static_cast<std::byte*>(call_.recv) + offset(share),
                     .count = call_.count,
                     .type = call_.type,
                     .peer = peer});
  }
  std::vector<PointToPoint>& list() { return list_; }

 private:
  size_t offset(int share) const { return static_cast<size_t>(share) * bytes_; }

  const CollectiveCall& call_;
  size_t bytes_;
  std::vector<PointToPoint> list_;
};

// Checks and issues. describe fills in the extents and what in place means, add the transfers.
template <class Describe, class Add>
pealResult_t exchange(Request& request, Describe&& describe, Add&& add) {
  return guarded([&]() -> Result<void> {
    return noteInGroup([&]() -> Result<void> {
      PEAL_TRY(checkComm(request.function, request.comm));
      Result<StreamRef> stream = streamFor(request.function, *request.comm, request.stream);
      if (!stream) {
        return stream.error();
      }
      PEAL_TRY(checkTypeAndOp(request));
      PEAL_TRY(describe());
      PEAL_TRY(checkExtents(request));
      Transfers transfers(request);
      add(transfers);
      Group& group = Group::ofThisThread();
      if (!group.active()) {
        return issueAlone(*request.comm, *stream, transfers.list());
      }
      for (const PointToPoint& transfer : transfers.list()) {
        group.add(request.comm->comm, *stream, transfer);
      }
      return {};
    }());
  });
}

// Extents where the root has a share of every rank in one buffer, and every rank one share in the other.
Result<void> describeRooted(Request& request, bool rootReceives) {
  PEAL_TRY(checkRoot(request));
  Result<RankBlocks> blocks = equalBlocks(request, request.call.count);
  if (!blocks) {
    return blocks.error();
  }
  const bool isRoot = request.comm->comm->rank() == request.call.root;
  const size_t all = isRoot ? blocks->total : 0;
  request.sendElements = rootReceives ? blocks->own : all;
  request.recvElements = rootReceives ? all : blocks->own;
  const CollectiveCall& call = request.call;
  const void* const array = rootReceives ? call.recv : call.send;
  const void* const share = rootReceives ? call.send : call.recv;
  if (isRoot && share == ownBlock(array, *blocks, call.type)) {
    request.inPlace = static_cast<const std::byte*>(call.send);
  }
  return {};
}

}  // namespace

pealResult_t pealAlltoAll(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                          pealComm_t comm, pealStream_t stream) {
  Request request =
      requestOf("pealAlltoAll", pealStatSend, sendbuff, recvbuff, count, datatype, comm, stream);
  const auto describe = [&]() -> Result<void> {
    Result<RankBlocks> blocks = equalBlocks(request, count);
    if (!blocks) {
      return blocks.error();
    }
    request.sendElements = request.recvElements = blocks->total;
    return {};
  };
  return exchange(request, describe, [&](Transfers& transfers) {
    const int rank = comm->comm->rank();
    const int size = comm->comm->size();
    for (int step = 1; step <= size; ++step) {  // no two ranks send to the same one first
      const int to = (rank + step) % size;
      const int from = (rank + size - step) % size;
      transfers.send(to, to);
      transfers.receive(from, from);
    }
  });
}

pealResult_t pealGather(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype, int root,
                        pealComm_t comm, pealStream_t stream) {
  Request request = requestOf("pealGather", pealStatSend, sendbuff, recvbuff, count, datatype, comm, stream);
  rootedAt(request, root);
  const auto describe = [&] { return describeRooted(request, true); };
  return exchange(request, describe, [&](Transfers& transfers) {
    if (request.inPlace == nullptr) {
      transfers.send(0, root);
    }
    for (int peer = 0; comm->comm->rank() == root && peer < comm->comm->size(); ++peer) {
      if (request.inPlace == nullptr || peer != root) {
        transfers.receive(peer, peer);
      }
    }
  });
}

pealResult_t pealScatter(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                         int root, pealComm_t comm, pealStream_t stream) {
  Request request = requestOf("pealScatter", pealStatSend, sendbuff, recvbuff, count, datatype, comm, stream);
  rootedAt(request, root);
  const auto describe = [&] { return describeRooted(request, false); };
  return exchange(request, describe, [&](Transfers& transfers) {
    if (request.inPlace == nullptr) {
      transfers.receive(0, root);
    }
    for (int peer = 0; comm->comm->rank() == root && peer < comm->comm->size(); ++peer) {
      if (request.inPlace == nullptr || peer != root) {
        transfers.send(peer, peer);
      }
    }
  });
}

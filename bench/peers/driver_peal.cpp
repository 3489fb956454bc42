// peal as a contender: driver_peal registered|plain|in-place CONTROL SOCKET, one process per rank, which
// finds its rank by PEAL_RANK and so on. Public API only. Started by bench/peers/run.
#include <peal/peal.h>

#include <map>
#include <string_view>

#include "bench/peers/driver.h"

namespace {

using namespace peers;

void check(pealResult_t result, const char* what, pealComm_t comm = nullptr) {
  if (result != pealSuccess) {
    std::fprintf(stderr, "%s: %s: %s\n", what, pealGetErrorString(result), pealGetLastError(comm));
    std::exit(1);
  }
}

pealDataType_t typeOf(Type type) {
  switch (type) {
    case Type::Float:
      return pealFloat32;
    case Type::Half:
      return pealFloat16;
    case Type::Bfloat16:
      return pealBfloat16;
  }
  return pealFloat32;
}

class PealPeer : public Peer {
 public:
  PealPeer(pealComm_t comm, std::string_view mode)
      : comm_(comm), isRegistered_(mode == "registered"), isInPlace_(mode == "in-place") {}

  void* allocate(size_t bytes) override {
    if (!isRegistered_) {
      return allocatePrivate(bytes);
    }
    void* memory = nullptr;
    void* handle = nullptr;
    check(pealMemAlloc(&memory, bytes), "pealMemAlloc", comm_);
    check(pealCommRegister(comm_, memory, bytes, &handle), "pealCommRegister", comm_);
    handles_[memory] = handle;
    return memory;
  }

  void release(void* memory, size_t bytes) override {
    if (!isRegistered_) {
      releasePrivate(memory, bytes);
      return;
    }
    check(pealCommDeregister(comm_, handles_.at(memory)), "pealCommDeregister", comm_);
    handles_.erase(memory);
    check(pealMemFree(memory), "pealMemFree", comm_);
  }

  Call prepare(const Case& what, void* send, void* recv) override {
    if (isInPlace_ && what.collective != Collective::AllReduce) {
      return {{}, "only all-reduce is measured in place", false};
    }
    return {[this, what, from = isInPlace_ ? recv : send, recv] { run(what, from, recv); }, "", isInPlace_};
  }

 private:
  void run(const Case& what, void* send, void* recv) {
    const pealDataType_t type = typeOf(what.type);
    switch (what.collective) {
      case Collective::AllReduce:
        return check(pealAllReduce(send, recv, what.count, type, pealSum, comm_, nullptr), "pealAllReduce",
                     comm_);
      case Collective::ReduceScatter:
        return check(pealReduceScatter(send, recv, what.count, type, pealSum, comm_, nullptr),
                     "pealReduceScatter", comm_);
      case Collective::AllGather:
        return check(pealAllGather(send, recv, what.count, type, comm_, nullptr), "pealAllGather", comm_);
      case Collective::Broadcast:
        return check(pealBcast(recv, what.count, type, kRoot, comm_, nullptr), "pealBcast", comm_);
      case Collective::Reduce:
        return check(pealReduce(send, recv, what.count, type, pealSum, kRoot, comm_, nullptr), "pealReduce",
                     comm_);
      case Collective::AllToAll:
        return exchangeAll(what, static_cast<const char*>(send), static_cast<char*>(recv));
      case Collective::SendRecv:
        check(pealGroupStart(), "pealGroupStart");
        check(pealSend(send, what.count, type, (what.rank + 1) % what.ranks, comm_, nullptr), "pealSend",
              comm_);
        check(pealRecv(recv, what.count, type, (what.rank + what.ranks - 1) % what.ranks, comm_, nullptr),
              "pealRecv", comm_);
        return check(pealGroupEnd(), "pealGroupEnd", comm_);
    }
  }

  // There is no call for it: a group of sends and receives, as in NCCL.
  void exchangeAll(const Case& what, const char* send, char* recv) {
    const size_t shareBytes = what.count * what.elementBytes;
    check(pealGroupStart(), "pealGroupStart");
    for (int peer = 0; peer < what.ranks; ++peer) {
      const size_t at = static_cast<size_t>(peer) * shareBytes;
      check(pealSend(send + at, what.count, typeOf(what.type), peer, comm_, nullptr), "pealSend", comm_);
      check(pealRecv(recv + at, what.count, typeOf(what.type), peer, comm_, nullptr), "pealRecv", comm_);
    }
    check(pealGroupEnd(), "pealGroupEnd", comm_);
  }

  pealComm_t comm_;
  const bool isRegistered_;
  const bool isInPlace_;
  std::map<void*, void*> handles_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc == 4 ? argv[1] : "";
  if (mode != "registered" && mode != "plain" && mode != "in-place") {
    std::fprintf(stderr, "usage: driver_peal registered|plain|in-place CONTROL SOCKET\n");
    return 2;
  }
  dieWithParent();
  pealComm_t comm = nullptr;
  int rank = 0, size = 1;
  check(pealCommInitLaunch(&comm, nullptr), "pealCommInitLaunch");
  check(pealCommUserRank(comm, &rank), "pealCommUserRank");
  check(pealCommCount(comm, &size), "pealCommCount");
  Ranks ranks(mapControl(argv[2]), rank, size);
  PealPeer peer(comm, mode);
  const int code = serve(peer, ranks, argv[3]);
  check(pealCommDestroy(comm), "pealCommDestroy");
  return code;
}

// gloo as a contender: driver_gloo ring|halving_doubling RANK RANKS ADDRESS STORE-FOLDER CONTROL SOCKET.
// ADDRESS: of this rank's interface. halving_doubling is in place and polls busily: gloo's quickest; it has
// all-reduce and reduce-scatter. Everything else is timed under ring. Built by bench/peers/run.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/peers/driver.h"

namespace {

using namespace peers;
using Context = std::shared_ptr<gloo::rendezvous::Context>;

class GlooPeer : public Peer {
 public:
  GlooPeer(Context context, bool isHalving) : context_(std::move(context)), isHalving_(isHalving) {}

  Call prepare(const Case& what, void* send, void* recv) override {
    if (isHalving_) {
      return prepareHalving(what, static_cast<float*>(recv));
    }
    if (what.type == Type::Half && what.collective == Collective::AllReduce) {
      return prepareAllReduce(what, static_cast<gloo::float16*>(send), static_cast<gloo::float16*>(recv));
    }
    if (what.type != Type::Float) {
      return {{}, "gloo has no such type", false};
    }
    return prepareRing(what, static_cast<float*>(send), static_cast<float*>(recv));
  }

 private:
  Call prepareHalving(const Case& what, float* data) const {
    if (what.type != Type::Float || (what.ranks & (what.ranks - 1)) != 0) {
      return {{}, "gloo's halving-doubling is for float and powers of two", false};
    }
    std::shared_ptr<gloo::Algorithm> algorithm;
    if (what.collective == Collective::AllReduce) {
      algorithm = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(context_, std::vector<float*>{data},
                                                                          static_cast<int>(what.count));
    } else if (what.collective == Collective::ReduceScatter) {
      algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
          context_, std::vector<float*>{data}, static_cast<int>(what.sendCount),
          std::vector<int>(static_cast<size_t>(what.ranks), static_cast<int>(what.count)));
    } else {
      return {{}, "gloo has no halving-doubling of this", false};
    }
    return {[algorithm] { algorithm->run(); }, "", true};
  }

  template <class T>
  Call prepareAllReduce(const Case& what, T* send, T* recv) {
    auto options = std::make_shared<gloo::AllreduceOptions>(context_);
    options->setInput(send, what.sendCount);
    options->setOutput(recv, what.recvCount);
    options->setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    void (*add)(void*, const void*, const void*, size_t) = &gloo::sum<T>;
    options->setReduceFunction(add);
    return {[options] { gloo::allreduce(*options); }, "", false};
  }

  Call prepareRing(const Case& what, float* send, float* recv) {
    switch (what.collective) {
      case Collective::AllReduce:
        return prepareAllReduce(what, send, recv);
      case Collective::AllGather: {
        auto options = std::make_shared<gloo::AllgatherOptions>(context_);
        options->setInput(send, what.sendCount);
        options->setOutput(recv, what.recvCount);
        return {[options] { gloo::allgather(*options); }, "", false};
      }
      case Collective::Broadcast: {
        auto options = std::make_shared<gloo::BroadcastOptions>(context_);
        options->setOutput(recv, what.recvCount);
        options->setRoot(kRoot);
        return {[options] { gloo::broadcast(*options); }, "", false};
      }
      case Collective::Reduce: {
        auto options = std::make_shared<gloo::ReduceOptions>(context_);
        options->setInput(send, what.sendCount);
        options->setOutput(recv, what.recvCount);
        options->setRoot(kRoot);
        void (*add)(void*, const void*, const void*, size_t) = &gloo::sum<float>;
        options->setReduceFunction(add);
        return {[options] { gloo::reduce(*options); }, "", false};
      }
      case Collective::AllToAll: {
        auto options = std::make_shared<gloo::AlltoallOptions>(context_);
        options->setInput(send, what.sendCount);
        options->setOutput(recv, what.recvCount);
        return {[options] { gloo::alltoall(*options); }, "", false};
      }
      case Collective::SendRecv:
        return prepareSendRecv(what, send, recv);
      case Collective::ReduceScatter:
        break;
    }
    return {{}, "gloo has it as halving-doubling only", false};
  }

  Call prepareSendRecv(const Case& what, float* send, float* recv) {
    const int next = (what.rank + 1) % what.ranks, last = (what.rank + what.ranks - 1) % what.ranks;
    const uint64_t slot = 1000 + slots_++;
    std::shared_ptr<gloo::transport::UnboundBuffer> from =
        context_->createUnboundBuffer(send, what.sendBytes());
    std::shared_ptr<gloo::transport::UnboundBuffer> to =
        context_->createUnboundBuffer(recv, what.recvBytes());
    return {[from, to, next, last, slot] {
              to->recv(last, slot);
              from->send(next, slot);
              from->waitSend();
              to->waitRecv();
            },
            "", false};
  }

  Context context_;
  const bool isHalving_;
  uint64_t slots_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string algorithm = argc == 8 ? argv[1] : "";
  if (algorithm != "ring" && algorithm != "halving_doubling") {
    std::fprintf(stderr,
                 "usage: driver_gloo ring|halving_doubling RANK RANKS ADDRESS STORE-FOLDER CONTROL SOCKET\n");
    return 2;
  }
  dieWithParent();
  const int rank = std::atoi(argv[2]), size = std::atoi(argv[3]);
  gloo::transport::tcp::attr attributes;
  attributes.hostname = argv[4];
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  gloo::rendezvous::FileStore store(argv[5]);
  context->connectFullMesh(store, device);
  if (algorithm == "halving_doubling") {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) {
        context->getPair(peer)->setSync(true, true);
      }
    }
  }
  Ranks ranks(mapControl(argv[6]), rank, size);
  GlooPeer peer(context, algorithm == "halving_doubling");
  serve(peer, ranks, argv[7]);
  ranks.barrier();  // nobody leaves while another may still need it
  // gloo's threads may outlive their context in this version: end without its destructors.
  std::fflush(stdout);
  std::_Exit(0);
}

// Ranks whose kernels reach each other through proxies, on one simulated machine: rank r is a thread with
// device r. Where a test says so, neighbouring ranks form nodes and reach each other by their windows.
#pragma once
#include <cuda_runtime.h>
#include <cudasim/runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/executor/cuda/gpu_direct.h"
#include "lib/executor/cuda/kernels.h"
#include "lib/executor/cuda/launch.h"
#include "lib/executor/cuda/proxy.h"
#include "lib/memory/cuda.h"
#include "tests/support/exchange.h"
#include "transports/shm/shm.h"

namespace peal::cuda::test {

using peal::test::BoardExchange;
using peal::test::ExchangeBoard;

inline constexpr int kLimitMs = 20000;

struct ProxyTest {
  int ranks = 2;
  int ranksPerNode = 1;
  BoxShape shape{.channels = 2, .slots = 2, .slotBytes = 1024, .lowSlotBytes = 256};
  int64_t timeoutMs = kLimitMs;
  int linkSlots = 2;
  // Of all ranks, each on a node of its own; by default over shared memory.
  std::function<std::unique_ptr<Endpoint>(Exchange&, size_t slotBytes, int slots)> connect{};
  std::optional<GpuDirect> direct{};  // nullopt: nobody asks whether the network reaches GPUs
  cudasim::Machine machine{};
  // Stands between a rank's proxy and its endpoint.
  std::function<std::unique_ptr<Endpoint>(int rank, std::unique_ptr<Endpoint>)> wrap{};
};

inline std::unique_ptr<Endpoint> connectRanks(Exchange& exchange, size_t slotBytes, int slots) {
  Result<std::unique_ptr<Endpoint>> endpoint = connectShm(
      exchange, {4, 2}, {.slotBytes = slotBytes, .slots = slots, .deadline = Deadline::afterMs(kLimitMs)});
  EXPECT_TRUE(endpoint) << endpoint.error().message;
  return endpoint ? std::move(*endpoint) : nullptr;
}

// One rank, as its executor would have it.
class ProxyRank {
 public:
  // `world` and `node` hold the exchanges of all ranks and of this rank's node.
  ProxyRank(const ProxyTest& test, ExchangeBoard& world, ExchangeBoard& node, int rank)
      : test_(test), rank_(rank), exchange_(world, rank), nodeExchange_(node, rank % test.ranksPerNode) {
    EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
    channels_ =
        take(DeviceBuffer::make(rank, static_cast<size_t>(test.shape.channels) * sizeof(ChannelState)));
    EXPECT_EQ(cudaMemset(channels_.data(), 0, channels_.bytes()), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);  // kernels run on another stream
    board_ = take(PinnedBuffer::make(rank, sizeof(HostBoard)));
    stream_ = take(StreamHolder::make(rank));
    const WindowShape window{test.shape, test.ranks};
    std::unique_ptr<Endpoint> control =
        test.ranksPerNode > 1 ? connectRanks(nodeExchange_, 4096, 4) : nullptr;
    memory_ = take(connectDeviceMemory(nodeExchange_, std::move(control),
                                       {.device = rank,
                                        .windowBytes = window.bytes(),
                                        .name = "",
                                        .deadline = Deadline::afterMs(kLimitMs)}));
    std::vector<int> far;
    for (int peer = 0; peer < test.ranks; ++peer) {
      if (nodeOf(peer) != nodeOf(rank)) {
        far.push_back(peer);
      }
    }
    const ProxyOptions options{.rank = rank,
                               .device = rank,
                               .shape = test.shape,
                               .name = "rank " + std::to_string(rank),
                               .timeoutMs = test.timeoutMs,
                               .board = reinterpret_cast<HostBoard*>(board_.data())};
    const auto connect = [&] {
      return Result<std::unique_ptr<Endpoint>>((test.connect ? test.connect : connectRanks)(
          exchange_, Proxy::networkSlotBytes(test.shape) + 64, test.linkSlots));
    };
    std::unique_ptr<Endpoint> network = take(connect());
    std::optional<ProxySlots> slots;
    if (test.direct) {
      slots = take(placeSlots(exchange_, network, far, options,
                              {*test.direct, Deadline::afterMs(kLimitMs), connect}, whyNotDirect_));
    }
    if (test.wrap) {
      network = test.wrap(rank, std::move(network));
    }
    proxy_ = take(Proxy::start(std::move(network), far, options, std::move(slots)));
    view_ = makeView(window);
  }

  int rank() const { return rank_; }
  int size() const { return test_.ranks; }
  Proxy& proxy() { return *proxy_; }
  const std::string& whyNotDirect() const { return whyNotDirect_; }
  const CommView& view() const { return view_; }
  const FaultRecord& fault() const { return reinterpret_cast<const HostBoard*>(board_.data())->fault; }
  void meet() { EXPECT_TRUE(exchange_.allGather({})); }

  void launch(const Collective& call) {
    const CollectiveArgs args = argumentsOf(view_, call, nullptr, *memory_);
    run(collectiveKernelFor(call.kind, Protocol::Simple), args);
  }
  void launch(const std::vector<PointToPoint>& calls) {
    const PointToPointArgs args = argumentsOf(view_, calls, *memory_);
    run(pointToPointKernel(), args);
  }

  // Whether the kernels have ended in time.
  bool wait(int limitMs = kLimitMs) const {
    const Deadline deadline = Deadline::afterMs(limitMs);
    cudaError_t code = cudaErrorNotReady;
    while ((code = cudaStreamQuery(stream_.get())) == cudaErrorNotReady && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return code == cudaSuccess;
  }

 private:
  template <class T>
  static T take(Result<T> result) {
    if (!result) {
      ADD_FAILURE() << result.error().message;
      return T{};
    }
    return std::move(*result);
  }
  int nodeOf(int rank) const { return rank / test_.ranksPerNode; }

  CommView makeView(const WindowShape& window) const {
    CommView view{};
    view.rank = rank_;
    view.ranks = test_.ranks;
    view.shape = test_.shape;
    view.channels = reinterpret_cast<ChannelState*>(channels_.data());
    view.stopped = reinterpret_cast<uint64_t*>(memory_->window());
    view.board = reinterpret_cast<HostBoard*>(board_.deviceData());
    view.timeoutNs = static_cast<uint64_t>(test_.timeoutMs) * 1'000'000;
    view.slotsApart = proxy_->slotsApart();
    for (int peer = 0; peer < test_.ranks; ++peer) {
      if (peer == rank_) {
        continue;
      }
      if (nodeOf(peer) == nodeOf(rank_)) {
        const int local = peer % test_.ranksPerNode;
        view.inbox[peer] = memory_->window() + window.inbox(peer);
        view.outbox[peer] = memory_->peerWindow(local) + window.inbox(rank_);
        view.peerStopped[peer] = reinterpret_cast<uint64_t*>(memory_->peerWindow(local));
      } else {
        view.inbox[peer] = proxy_->inbox(peer);
        view.outbox[peer] = proxy_->outbox(peer);
        view.peerStopped[peer] = proxy_->peerStopped(peer);
      }
    }
    return view;
  }

  template <class Args>
  void run(void (*kernel)(Args), const Args& args) {
    void* pointers[] = {const_cast<Args*>(&args)};
    EXPECT_EQ(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(test_.shape.channels)), dim3(64), pointers,
                               0, stream_.get()),
              cudaSuccess);
  }

  const ProxyTest& test_;
  const int rank_;
  BoardExchange exchange_;
  BoardExchange nodeExchange_;
  DeviceBuffer channels_;
  PinnedBuffer board_;
  StreamHolder stream_;
  std::string whyNotDirect_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<Proxy> proxy_;
  CommView view_{};
};

// Runs body on every rank and looks what is left.
inline void runProxyRanks(const ProxyTest& test, const std::function<void(ProxyRank&)>& body) {
  cudasim::restart(test.machine);
  ExchangeBoard world(test.ranks);
  std::vector<std::unique_ptr<ExchangeBoard>> nodes;
  for (int node = 0; node * test.ranksPerNode < test.ranks; ++node) {
    nodes.push_back(std::make_unique<ExchangeBoard>(test.ranksPerNode));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < test.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ProxyRank self(test, world, *nodes[static_cast<size_t>(rank / test.ranksPerNode)], rank);
      if (!::testing::Test::HasFatalFailure()) {
        body(self);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(cudasim::liveObjects(), std::vector<std::string>{});
}

}  // namespace peal::cuda::test

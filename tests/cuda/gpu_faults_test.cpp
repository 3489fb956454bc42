// Faults while kernels run: abort, the deadline, ranks that disagree, a process that dies. Kernels leave,
// every rank gets an error that names the culprit, and nothing hangs.
#include <atomic>
#include <barrier>
#include <mutex>
#include <optional>

#include "lib/executor/cuda/device.h"
#include "tests/cuda/gpu_ranks.h"

namespace {

using namespace peal::test;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kCount = 3000;

// A kernel waits for rank 1, whose call never comes.
TEST(GpuFaults, AbortReachesSpinningKernels) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    {
      const GpuStream stream(0);
      const GpuBuffer data(0, kCount * sizeof(float));
      PEAL_EXPECT_OK(
          pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comms[0], stream.peal()));
      std::this_thread::sleep_for(milliseconds(20));  // mostly spinning by now; right in any case
      EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);
      const auto start = steady_clock::now();
      PEAL_EXPECT_OK(pealCommAbort(comms[0]));
      stream.synchronize();
      EXPECT_LT(steady_clock::now() - start, kAtOnce);
    }
    EXPECT_EQ(awaitError(comms[1]), pealRemoteError);
    expectWords(pealGetLastError(comms[1]), {"rank 0", "abort"});
    PEAL_EXPECT_OK(pealCommAbort(comms[1]));
  });
}

TEST(GpuFaults, TheDeadlineNamesWhoDidNotCome) {
  inProcess(with(smallGpu(), {{"PEAL_TIMEOUT_MS", "300"}}), [] {
    const std::vector<pealComm_t> comms = initAll({0, 0});
    {
      const GpuStream stream(0);
      const GpuBuffer data(0, kCount * sizeof(float));
      PEAL_EXPECT_OK(
          pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comms[0], stream.peal()));
      stream.synchronize();
      EXPECT_EQ(awaitError(comms[0]), pealTimeout);
      expectWords(pealGetLastError(comms[0]), {"all_reduce #", "count 3000", "300 ms", "rank 1"});
      EXPECT_EQ(awaitError(comms[1]), pealRemoteError);
      // Every later call says it again, at once.
      EXPECT_EQ(pealBarrier(comms[0], stream.peal()), pealTimeout);
      EXPECT_EQ(pealBarrier(comms[1], stream.peal()), pealRemoteError);
    }
    destroyAll(comms);
  });
}

// Rank 0 makes one call, rank 1 another.
void expectDisagreement(const Call& first, const Call& second, const std::vector<std::string>& words) {
  const std::vector<pealComm_t> comms = initAll({0, 1});
  std::mutex mutex;
  std::string sentences;
  bool usage = false;
  onThreads(2, [&](int rank) {
    const pealComm_t comm = comms[static_cast<size_t>(rank)];
    const GpuStream stream(rank);
    const GpuBuffer in(rank, 40000);
    const GpuBuffer out(rank, 40000);
    PEAL_EXPECT_OK(issue(rank == 0 ? first : second, in.data(), out.data(), comm, 2, stream.peal()));
    stream.synchronize();
    const pealResult_t error = awaitError(comm);
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(error == pealInvalidUsage || error == pealRemoteError) << pealGetLastError(comm);
    usage = usage || error == pealInvalidUsage;
    sentences += pealGetLastError(comm) + std::string("\n");
  });
  EXPECT_TRUE(usage) << "nobody says what the ranks disagree on: " << sentences;
  expectWords(sentences, words);
  destroyAll(comms);
}

TEST(GpuFaults, RanksThatDisagreeLearnTheField) {
  inProcess(with(smallGpu(), {{"PEAL_PROTOCOL", "simple"}}), [] {
    const Call call{.kind = pealStatAllReduce, .type = pealFloat32, .count = 200};
    Call other = call;
    other.count = 201;
    expectDisagreement(call, other, {"the count is", "200", "201"});
    other = call;
    other.type = pealInt32;
    expectDisagreement(call, other, {"the data type is", "float", "int32"});
    other = call;
    other.op = pealMax;
    expectDisagreement(call, other, {"the reduction is", "sum", "max"});
    Call rooted{.kind = pealStatReduce, .type = pealFloat32, .count = 200, .root = 0};
    Call elsewhere{.kind = pealStatReduce, .type = pealFloat32, .count = 200, .root = 0};
    elsewhere.op = pealMin;
    expectDisagreement(rooted, elsewhere, {"the reduction is", "min"});
    expectDisagreement(call, {.kind = pealStatAllGather, .type = pealFloat32, .count = 200},
                       {"the operation is", "all_reduce", "all_gather"});
  });
  inProcess(with(smallGpu(), {{"PEAL_PROTOCOL", "ll"}}), [] {
    const Call call{.kind = pealStatAllReduce, .type = pealFloat32, .count = 200};
    Call other = call;
    other.op = pealMax;
    expectDisagreement(call, other, {"the reduction is", "sum", "max"});
  });
}

// No message of one rank meets a wait of the other: the tuner's protocol depends on the count, or every rank
// waits for a root that it is not. The deadline is far away.
TEST(GpuFaults, CallsWhoseMessagesDoNotMeet) {
  inProcess(smallGpu(), [] {
    const auto start = steady_clock::now();
    const Call small{.kind = pealStatAllReduce, .type = pealInt8, .count = 100};
    Call large = small;
    large.count = 40000;
    expectDisagreement(small, large, {"the count is", "100", "40000"});
    expectDisagreement(large, small, {"the count is", "100", "40000"});
    expectDisagreement(large, {.kind = pealStatBarrier}, {"the operation is", "barrier"});
    const Call rooted{.kind = pealStatBroadcast, .type = pealFloat32, .count = 200, .root = 1};
    Call elsewhere = rooted;
    elsewhere.root = 0;
    expectDisagreement(rooted, elsewhere, {"the root is", "1 on rank 0", "0 on rank 1"});
    EXPECT_LT(steady_clock::now() - start, kAtOnce);
  });
}

// One rank sends or receives, the other is in a collective, and no message meets a wait: whichever deadline
// comes first says what the other rank does. It is long enough for both to have begun.
TEST(GpuFaults, ATransferBesideACollectiveIsNamed) {
  inProcess(with(smallGpu(), {{"PEAL_TIMEOUT_MS", "2000"}}), [] {
    for (const bool sends : {true, false}) {
      const std::vector<pealComm_t> comms = initAll({0, 1});
      std::vector<std::string> sentences(2);
      onThreads(2, [&](int rank) {
        const pealComm_t comm = comms[static_cast<size_t>(rank)];
        const GpuStream stream(rank);
        const GpuBuffer data(rank, 40000);
        if (rank == 0) {
          PEAL_EXPECT_OK(
              pealAllReduce(data.data(), data.data(), 77, pealFloat32, pealSum, comm, stream.peal()));
        } else if (sends) {
          PEAL_EXPECT_OK(pealSend(data.data(), 9999, pealFloat32, 0, comm, stream.peal()));
        } else {
          PEAL_EXPECT_OK(pealRecv(data.data(), 9999, pealFloat32, 0, comm, stream.peal()));
        }
        stream.synchronize();
        const pealResult_t error = awaitError(comm);
        EXPECT_TRUE(error == pealTimeout || error == pealRemoteError) << error;
        sentences[static_cast<size_t>(rank)] = pealGetLastError(comm);
      });
      const std::string all = sentences[0] + "\n" + sentences[1];
      const bool named =
          all.find(
              sends
                  ? "Rank 1 is in sends and receives, the first of them a send of 9999 float to rank 0"
                  : "Rank 1 is in sends and receives, the first of them a recv of 9999 float from rank 0") !=
              std::string::npos ||
          all.find("Rank 0 is in all_reduce #0 (count 77") != std::string::npos;
      EXPECT_TRUE(named) << all;
      destroyAll(comms);
    }
  });
}

TEST(GpuFaults, ADisagreementBehindAgreementInGraphsToo) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    onThreads(2, [&](int rank) {
      const pealComm_t comm = comms[static_cast<size_t>(rank)];
      const GpuStream stream(rank);
      const GpuBuffer data(rank, 800);
      const auto broadcast = [&](int root) {
        PEAL_EXPECT_OK(pealBroadcast(data.data(), data.data(), 200, pealFloat32, root, comm, stream.peal()));
      };
      // Rank 0 launches from a graph what rank 1 calls, twenty times; then they differ.
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t launchable = nullptr;
      if (rank == 0) {
        CUDA_OK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
        broadcast(0);
        CUDA_OK(cudaStreamEndCapture(stream.get(), &graph));
        CUDA_OK(cudaGraphInstantiate(&launchable, graph, 0));
      }
      for (int turn = 0; turn < 20; ++turn) {
        if (rank == 0) {
          CUDA_OK(cudaGraphLaunch(launchable, stream.get()));
        } else {
          broadcast(0);
        }
      }
      stream.synchronize();
      broadcast(1 - rank);
      stream.synchronize();
      const pealResult_t error = awaitError(comm);
      EXPECT_TRUE(error == pealInvalidUsage || error == pealRemoteError) << pealGetLastError(comm);
      if (rank == 0) {
        CUDA_OK(cudaGraphExecDestroy(launchable));
        CUDA_OK(cudaGraphDestroy(graph));
      }
    });
    destroyAll(comms);
  });
}

TEST(GpuFaults, SendsThatDoNotFitTheirReceives) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    onThreads(2, [&](int rank) {
      const pealComm_t comm = comms[static_cast<size_t>(rank)];
      const GpuStream stream(rank);
      const GpuBuffer data(rank, kCount * 4);
      if (rank == 0) {
        PEAL_EXPECT_OK(pealSend(data.data(), 10, pealFloat32, 1, comm, stream.peal()));
      } else {
        PEAL_EXPECT_OK(pealRecv(data.data(), 11, pealFloat32, 0, comm, stream.peal()));
      }
      stream.synchronize();
      EXPECT_EQ(awaitError(comm), rank == 1 ? pealInvalidUsage : pealRemoteError);
      expectWords(pealGetLastError(comm), {"the count is", "11 on rank 1", "10 on rank 0"});
    });
    destroyAll(comms);
  });
}

// Communicators of one thread take turns on a device: the end of one lets the next go on.
TEST(GpuFaults, AnAbortedCommunicatorLetsTheOtherGoOn) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> aborted = initAll({0, 0});
    const std::vector<pealComm_t> other = initAll({0, 0});
    std::barrier looked(2), ended(2);
    onThreads(2, [&](int rank) {
      const auto index = static_cast<size_t>(rank);
      const GpuStream one(0), two(0);
      const GpuBuffer data(0, kCount * sizeof(float));
      const auto allReduce = [&](pealComm_t comm, const GpuStream& stream) {
        return pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comm, stream.peal());
      };
      if (rank == 0) {  // rank 1 never makes this call
        PEAL_EXPECT_OK(allReduce(aborted[index], one));
      }
      PEAL_EXPECT_OK(allReduce(other[index], two));
      if (rank == 0) {
        std::this_thread::sleep_for(milliseconds(20));
        EXPECT_EQ(cudaStreamQuery(two.get()), cudaErrorNotReady) << "out of order";
        static_cast<void>(cudaGetLastError());
      }
      looked.arrive_and_wait();  // rank 1's abort would end rank 0's kernel
      PEAL_EXPECT_OK(pealCommAbort(aborted[index]));
      two.synchronize();
      ended.arrive_and_wait();  // what frees memory waits for all kernels of the device
      PEAL_EXPECT_OK(allReduce(other[index], two));
      two.synchronize();
      one.synchronize();
    });
    destroyAll(other);
  });
}

// Its kernel has not begun, and will not before the other's ends: abort does not wait for that, and what the
// kernel uses is freed later.
TEST(GpuFaults, AnAbortedCommunicatorBehindAnotherEnds) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> waiting = initAll({0, 1});
    std::vector<pealComm_t> behind(2);
    Meeting meeting;
    onThreads(2, [&](int rank) {
      pealConfig_t config = PEAL_CONFIG_INITIALIZER;
      config.device = rank;
      config.timeoutMs = 300;
      PEAL_EXPECT_OK(meeting.join(&behind[static_cast<size_t>(rank)], rank, 2, &config));
    });
    {
      const GpuStream one(0), two(0);
      const GpuBuffer data = {0, kCount * sizeof(float)};
      const auto allReduce = [&](pealComm_t comm, const GpuStream& stream) {
        return pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comm, stream.peal());
      };
      PEAL_EXPECT_OK(allReduce(waiting[0], one));
      PEAL_EXPECT_OK(allReduce(behind[0], two));
      PEAL_EXPECT_OK(pealCommAbort(behind[0]));
      EXPECT_EQ(cudaStreamQuery(two.get()), cudaErrorNotReady);
      EXPECT_EQ(awaitError(behind[1]), pealRemoteError);
      PEAL_EXPECT_OK(pealCommAbort(behind[1]));
      PEAL_EXPECT_OK(pealCommAbort(waiting[0]));
      two.synchronize();
      PEAL_EXPECT_OK(pealCommAbort(waiting[1]));
    }
    destroyAll(initAll({0}));  // frees what was left
  });
}

// The kernel that keeps it waiting leaves, and the call returns, on another thread.
TEST(GpuFaults, AbortEndsAFinalizeThatWaits) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    const GpuStream stream(0);
    const GpuBuffer data(0, kCount * sizeof(float));
    PEAL_EXPECT_OK(
        pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comms[0], stream.peal()));
    std::thread waiting([&] {
      const pealResult_t ended = pealCommFinalize(comms[0]);
      // The latter if this thread had no turn before the abort.
      EXPECT_TRUE(ended == pealRemoteError || ended == pealInvalidArgument) << ended;
    });
    std::this_thread::sleep_for(milliseconds(30));
    const auto start = steady_clock::now();
    PEAL_EXPECT_OK(pealCommAbort(comms[0]));
    waiting.join();
    stream.synchronize();
    EXPECT_LT(steady_clock::now() - start, kAtOnce);
    EXPECT_EQ(awaitError(comms[1]), pealRemoteError);
    PEAL_EXPECT_OK(pealCommAbort(comms[1]));
  });
}

// A kernel of the application.
PEAL_KERNEL void readBehindTheEnd(uint64_t* data) {
  peal::cuda::storeGlobal(data, peal::cuda::loadGlobal(data + kCount / 2));
}

// An illegal access loses a device to its process: every CUDA call fails from then on. Ranks of other
// processes learn of it, and nothing hangs, while a kernel of the communicator waits or not.
TEST(GpuFaults, ALostDeviceIsSaidAndReleasesThePeers) {
  for (const bool atWork : {false, true}) {
    SharedValue<Meeting> meeting;
    expectAllSucceeded(runProcesses(2, kHangs, [&](const Child& child) {
      enter(smallGpu(), {});
      peal::cudasim::setTraps(peal::cudasim::Traps::Error);
      pealConfig_t config = PEAL_CONFIG_INITIALIZER;
      config.device = child.index();
      pealComm_t comm = nullptr;
      if (meeting->join(&comm, child.index(), 2, &config) != pealSuccess) {
        child.say(pealGetLastError(nullptr));
        return 2;
      }
      cudaStream_t stream = nullptr;
      void* memory = nullptr;
      cudaOk(cudaSetDevice(child.index()), "cudaSetDevice");
      cudaOk(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      cudaOk(cudaMalloc(&memory, kCount * sizeof(float)), "cudaMalloc");
      const auto allReduce = [&] {
        return pealAllReduce(memory, memory, kCount, pealFloat32, pealSum, comm, asPeal(stream));
      };
      const auto start = steady_clock::now();
      if (child.index() == 0) {
        if (atWork) {
          PEAL_EXPECT_OK(allReduce());
        }
        cudaStream_t other = nullptr;
        cudaOk(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        auto* words = static_cast<uint64_t*>(memory);
        void* args[] = {&words};
        cudaOk(cudaLaunchKernel(readBehindTheEnd, 1, 32, args, 0, other), "cudaLaunchKernel");
        EXPECT_EQ(cudaStreamSynchronize(other), cudaErrorIllegalAddress);
        EXPECT_EQ(allReduce(), pealUnhandledCudaError);
        expectWords(pealGetLastError(nullptr), {"A kernel of this process failed earlier", "restart it"});
        EXPECT_EQ(std::string(pealGetLastError(nullptr)).find("cudaStream_t"), std::string::npos);
        pealCommDestroy(comm);
        leaksCanBeChecked = false;  // its kernel may still run, and what lies on a fiber is not seen
      } else {
        if (!atWork) {
          const pealResult_t issued = allReduce();  // rank 0's news may have come before it
          EXPECT_TRUE(issued == pealSuccess || issued == pealRemoteError) << issued;
        }
        EXPECT_EQ(awaitError(comm), pealRemoteError);
        expectWords(pealGetLastError(comm), {"rank 0"});
        cudaOk(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        cudaOk(cudaStreamDestroy(stream), "cudaStreamDestroy");
        cudaOk(cudaFree(memory), "cudaFree");
        PEAL_EXPECT_OK(pealCommDestroy(comm));
        expectNothingAlive();
      }
      EXPECT_LT(steady_clock::now() - start, kAtOnce);
      return 0;
    }));
  }
}

// Kernels of two processes on each of two devices are at work, some of them on buffers of the process that
// dies.
void killAmidTraffic(const char* protocol) {
  constexpr int kRanks = 4;
  constexpr int kVictim = 2;
  constexpr size_t kLarge = 6000;
  SharedValue<Meeting> meeting;
  SharedValue<std::atomic<int>> ended;  // survivors whose kernels have
  Processes processes(kRanks, [&](const Child& child) {
    enter(with(smallGpu(), {{"PEAL_PROTOCOL", protocol}, {"PEAL_SLOT_BYTES", "8192"}}), {});
    const int device = child.index() / 2;
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.device = device;
    pealComm_t comm = nullptr;
    if (meeting->join(&comm, child.index(), kRanks, &config) != pealSuccess) {
      child.say(pealGetLastError(nullptr));
      return 2;
    }
    {
      const GpuStream stream(device);
      const GpuBuffer in(device, kLarge * sizeof(float)), out(device, kLarge * sizeof(float));
      void* handle = nullptr;
      PEAL_EXPECT_OK(pealCommRegister(comm, in.data(), in.bytes(), &handle));
      pealResult_t error = pealSuccess;
      for (int turn = 0; error == pealSuccess; ++turn) {
        error = pealAllReduce(in.data(), out.data(), kLarge, pealFloat32, pealSum, comm, stream.peal());
        if (error == pealSuccess) {
          error = pealBroadcast(in.data(), out.data(), kLarge, pealFloat32, kVictim, comm, stream.peal());
        }
        stream.synchronize();
        if (turn == 2) {
          child.say("busy");
        }
      }
      EXPECT_EQ(error, pealRemoteError);
      expectWords(pealGetLastError(comm), {"rank 2"});
      // Nobody deregisters, or ends, while a kernel may read its buffers (peal.h).
      ended->fetch_add(1);
      while (ended->load() < kRanks - 1) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      PEAL_EXPECT_OK(pealCommDeregister(comm, handle));
    }
    PEAL_EXPECT_OK(pealCommDestroy(comm));
    expectNothingAlive();
    return 0;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(processes.waitForMessage(rank, kHangs)) << "rank " << rank;
  }
  std::this_thread::sleep_for(milliseconds(7));
  processes.kill(kVictim);
  const auto killed = steady_clock::now();
  const std::vector<ChildResult> results = processes.wait(kHangs);
  EXPECT_LT(steady_clock::now() - killed, kAtOnce) << protocol;
  EXPECT_EQ(results[kVictim].signal, SIGKILL);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(results[static_cast<size_t>(rank)].exitCode, 0)
        << protocol << ": " << results[static_cast<size_t>(rank)].message;
  }
}

TEST(GpuFaults, AProcessKilledAmidTrafficIsNamed) {
  for (const char* protocol : {"simple", "ll", "ll128"}) {
    killAmidTraffic(protocol);
  }
}

TEST(GpuFaults, AKilledProcessIsNamed) {
  constexpr int kRanks = 3;
  SharedValue<Meeting> meeting;
  Processes processes(kRanks, [&](const Child& child) {
    enter(smallGpu(), {});
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.device = child.index();
    pealComm_t comm = nullptr;
    if (meeting->join(&comm, child.index(), kRanks, &config) != pealSuccess) {
      child.say(pealGetLastError(nullptr));
      return 2;
    }
    {
      const GpuStream stream(child.index());
      const GpuBuffer data(child.index(), kCount * sizeof(float));
      const auto allReduce = [&] {
        return pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comm, stream.peal());
      };
      PEAL_EXPECT_OK(allReduce());
      stream.synchronize();
      child.say("ready");
      if (child.index() == 1) {
        std::this_thread::sleep_for(std::chrono::minutes(5));  // until it is killed
      }
      const pealResult_t issued = allReduce();  // the news may have come before it
      EXPECT_TRUE(issued == pealSuccess || issued == pealRemoteError) << issued;
      const auto start = steady_clock::now();
      stream.synchronize();  // the kernel leaves by itself
      EXPECT_LT(steady_clock::now() - start, kAtOnce);
      EXPECT_EQ(awaitError(comm), pealRemoteError);
      expectWords(pealGetLastError(comm), {"rank 1"});
    }
    PEAL_EXPECT_OK(pealCommDestroy(comm));
    return 0;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(processes.waitForMessage(rank, kHangs)) << "rank " << rank;
  }
  processes.kill(1);
  const std::vector<ChildResult> results = processes.wait(kHangs);
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[static_cast<size_t>(rank)].exitCode, 0) << results[static_cast<size_t>(rank)].message;
  }
}

}  // namespace

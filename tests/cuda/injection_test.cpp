// Every CUDA call of a communicator's life fails once, one at a time: an error code and a sentence, no crash,
// no hang, nothing left alive, and the other rank is released. Ranks as threads, and as processes by IPC.
#include "tests/cuda/injection.h"

namespace {

using namespace peal::test;

// Sums, exchanges halves and waits. True: it all went well.
bool useBuffer(pealComm_t comm, int rank, float* data, const GpuStream& stream, Outcomes& outcomes) {
  constexpr size_t kHalf = kInjectedCount / 2;
  if (!outcomes.ok(pealAllReduce(data, data, kInjectedCount, pealFloat32, pealSum, comm, stream.peal())) ||
      !outcomes.ok(pealGroupStart())) {
    return false;
  }
  outcomes.ok(pealSend(data, kHalf, pealFloat32, 1 - rank, comm, stream.peal()));
  outcomes.ok(pealRecv(data + kHalf, kHalf, pealFloat32, 1 - rank, comm, stream.peal()));
  return outcomes.ok(pealGroupEnd()) && outcomes.ok(pealCommFinalize(comm));
}

void useCommunicator(pealComm_t comm, int rank, int device, const GpuStream& stream, const GpuBuffer& buffer,
                     Outcomes& outcomes) {
  void* more = nullptr;
  void* handle = nullptr;
  bool good = outcomes.ok(pealMemAllocDevice(&more, 64, device));
  good = good && outcomes.ok(pealCommRegister(comm, buffer.data(), buffer.bytes(), &handle));
  good = good && useBuffer(comm, rank, reinterpret_cast<float*>(buffer.data()), stream, outcomes);
  if (handle != nullptr) {
    good = outcomes.ok(pealCommDeregister(comm, handle)) && good;
  }
  outcomes.ok(good ? pealCommDestroy(comm) : pealCommAbort(comm));
  // A call that ends something does it although it reports an error: try again only what stayed.
  if (!outcomes.ok(pealMemFree(more))) {
    static_cast<void>(pealMemFree(more));
  }
}

TEST(Injection, EveryCallOnOneDevice) {
  inProcess(
      injected(),
      [] {
        failEveryCall({0, 0}, useCommunicator, 2);
      },
      kHangs);
}

TEST(Injection, EveryCallWithPeerAccess) {
  inProcess(
      injected(),
      [] {
        failEveryCall({0, 1}, useCommunicator, 2);
      },
      kHangs);
}

// Ranks as processes: every call of rank 0 fails once, and rank 1 is released each time.
constexpr size_t kMostLives = 1000;
struct Lives {
  std::array<Meeting, kMostLives> meetings;
  std::atomic<uint64_t> calls{0};  // of rank 0 in a life without errors
};

// One life of this process's rank, which fails its n-th call; 0: none.
Life liveAlone(Lives& lives, uint64_t n, int rank) {
  Life life;
  Outcomes outcomes;
  {
    const GpuStream stream(rank);
    const std::vector<float> ones(kInjectedCount, 1.0F);
    std::vector<std::byte> input(kInjectedCount * sizeof(float));
    std::memcpy(input.data(), ones.data(), input.size());
    const GpuBuffer buffer(rank, input);
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.device = rank;
    peal::cudasim::countCalls();
    if (n > 0 && rank == 0) {
      peal::cudasim::failCall("*", n);
    }
    pealComm_t comm = nullptr;
    const bool made = outcomes.ok(lives.meetings[n].join(&comm, rank, 2, &config));
    life.connectCalls = peal::cudasim::callCount();
    if (made) {
      useCommunicator(comm, rank, rank, stream, buffer, outcomes);
    }
    peal::cudasim::failNothing();
    life.calls = peal::cudasim::callCount();
    life.failed = outcomes.anyFailed();
    const std::vector<std::byte> bytes = buffer.read();
    std::vector<float> values(kInjectedCount);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    EXPECT_TRUE(life.failed || values == std::vector<float>(kInjectedCount, 2.0F)) << n << ": " << values[0];
  }
  expectNothingAlive();
  return life;
}

TEST(Injection, EveryCallOfAProcess) {
  SharedValue<Lives> lives;
  expectAllSucceeded(runProcesses(2, kHangs, [&](const Child& child) {
    enter(injected(), {});
    const Life clean = liveAlone(*lives, 0, child.index());
    EXPECT_FALSE(clean.failed);
    if (child.index() == 0) {
      EXPECT_LT(clean.calls, kMostLives) << "some calls are not tried";
      lives->calls.store(std::min<uint64_t>(clean.calls, kMostLives - 1));
    }
    while (lives->calls.load() == 0) {
      std::this_thread::yield();
    }
    for (uint64_t n = 1; n <= lives->calls.load(); n += kInjectionStep) {
      const auto start = std::chrono::steady_clock::now();
      const Life life = liveAlone(*lives, n, child.index());
      EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce) << n;
      if (child.index() == 0 && life.calls >= n) {
        const std::string name = peal::cudasim::callName(n);
        EXPECT_TRUE(life.failed || mayGoOn(name, n, life))
            << "call " << n << ", " << name << ", failed and nobody said so";
      }
    }
    return 0;
  }));
}

}  // namespace

// Every CUDA call of a communicator's life fails once, one at a time: an error code and a sentence, no crash,
// no hang, nothing left alive, and the other rank is released.
#include <atomic>
#include <memory>

#include "tests/cuda/gpu_ranks.h"

namespace {

using namespace peal::test;

constexpr size_t kCount = 600;

// Notes what peal returns; a failure must come with a sentence.
class Outcomes {
 public:
  bool ok(pealResult_t result) {
    if (result != pealSuccess) {
      EXPECT_STRNE(pealGetLastError(nullptr), "") << pealGetErrorString(result);
      failed_ = true;
    }
    return result == pealSuccess;
  }
  bool anyFailed() const { return failed_; }

 private:
  std::atomic<bool> failed_{false};
};

// Sums, exchanges halves and waits. True: it all went well.
bool useBuffer(pealComm_t comm, int rank, float* data, const GpuStream& stream, Outcomes& outcomes) {
  constexpr size_t kHalf = kCount / 2;
  if (!outcomes.ok(pealAllReduce(data, data, kCount, pealFloat32, pealSum, comm, stream.peal())) ||
      !outcomes.ok(pealGroupStart())) {
    return false;
  }
  outcomes.ok(pealSend(data, kHalf, pealFloat32, 1 - rank, comm, stream.peal()));
  outcomes.ok(pealRecv(data + kHalf, kHalf, pealFloat32, 1 - rank, comm, stream.peal()));
  return outcomes.ok(pealGroupEnd()) && outcomes.ok(pealCommFinalize(comm));
}

// What a rank does with its communicator, as a careful program would: after an error it aborts.
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

struct Life {
  bool failed = false;        // somebody said so
  uint64_t connectCalls = 0;  // CUDA calls until the communicators were there
  uint64_t calls = 0;         // in all
};

// The whole life of a communicator of two ranks. fail: what goes wrong from here on. If nobody says that
// something did, the results are right.
Life live(const std::vector<int>& devices, const std::function<void()>& fail) {
  Life life;
  Outcomes outcomes;
  {
    std::vector<std::unique_ptr<GpuStream>> streams;
    std::vector<std::unique_ptr<GpuBuffer>> buffers;
    const std::vector<float> ones(kCount, 1.0F);
    std::vector<std::byte> input(kCount * sizeof(float));
    std::memcpy(input.data(), ones.data(), input.size());
    for (const int device : devices) {
      streams.push_back(std::make_unique<GpuStream>(device));
      buffers.push_back(std::make_unique<GpuBuffer>(device, input));
    }
    peal::cudasim::countCalls();
    fail();
    std::vector<pealComm_t> comms(devices.size());
    const bool made =
        outcomes.ok(pealCommInitAll(comms.data(), static_cast<int>(devices.size()), devices.data()));
    life.connectCalls = peal::cudasim::callCount();
    if (made) {
      onThreads(static_cast<int>(devices.size()), [&](int rank) {
        const auto index = static_cast<size_t>(rank);
        useCommunicator(comms[index], rank, devices[index], *streams[index], *buffers[index], outcomes);
      });
    }
    peal::cudasim::failNothing();
    life.calls = peal::cudasim::callCount();
    life.failed = outcomes.anyFailed();
    for (const auto& buffer : buffers) {
      const std::vector<std::byte> bytes = buffer->read();
      std::vector<float> values(kCount);
      std::memcpy(values.data(), bytes.data(), bytes.size());
      EXPECT_TRUE(life.failed || values == std::vector<float>(kCount, 2.0F)) << values[0];
    }
  }
  expectNothingAlive();
  return life;
}

// Calls after whose failure peal goes on as well as before. Those that end something are logged, since
// nothing follows from them. While ranks connect, all of them then agree on windows in host memory.
bool mayGoOn(const std::string& call, uint64_t n, uint64_t connected) {
  const auto is = [&](const char* part) { return call.find(part) != std::string::npos; };
  return n <= connected || is("Destroy") || is("Free") || is("Disable") || is("SetDevice") ||
         is("GetDevice") || is("ExchangeStreamCaptureMode") || is("Query");
}

void failEveryCall(const std::vector<int>& devices) {
  const Life clean = live(devices, [] {});
  ASSERT_FALSE(clean.failed);
  ASSERT_GT(clean.calls, 50u);
  for (uint64_t n = 1; n <= clean.calls; ++n) {
    const auto start = std::chrono::steady_clock::now();
    const Life life = live(devices, [&] { peal::cudasim::failCall("*", n); });
    const bool happened = life.calls >= n;  // looks at events come as often as it takes
    const std::string name = happened ? peal::cudasim::callName(n) : "none";
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8)) << n << ": " << name;
    EXPECT_TRUE(life.failed || !happened || mayGoOn(name, n, life.connectCalls))
        << "call " << n << ", " << name << ", failed and nobody said so";
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "at call " << n << ", " << name;
      return;
    }
  }
}

// The deadline is short: a call whose error keeps a rank from going on may leave the other to it.
Environment injected() {
  return with(smallGpu(), {{"PEAL_TIMEOUT_MS", "3000"}, {"PEAL_INIT_TIMEOUT_MS", "3000"}});
}

TEST(Injection, EveryCallOnOneDevice) {
  inProcess(
      injected(),
      [] {
        failEveryCall({0, 0});
      },
      std::chrono::seconds(110));
}

TEST(Injection, EveryCallWithPeerAccess) {
  inProcess(
      injected(),
      [] {
        failEveryCall({0, 1});
      },
      std::chrono::seconds(110));
}

}  // namespace

// What tests of injected errors share: outcomes that must come with a sentence, the life of communicators in
// one process, and that life again and again with each CUDA call failing once.
#pragma once
#include <atomic>
#include <memory>

#include "lib/executor/cuda/retired.h"
#include "tests/cuda/gpu_ranks.h"

namespace peal::test {

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
  // Of the test's own calls, which fail as well.
  bool ok(cudaError_t code) {
    failed_ = failed_ || code != cudaSuccess;
    return code == cudaSuccess;
  }
  bool anyFailed() const { return failed_; }
  // Notes that ranks connect once more, as splitting does.
  void connectingBegins() {
    uint64_t none = 0;
    connectingFrom_.compare_exchange_strong(none, peal::cudasim::callCount() + 1);
  }
  void connectingEnds() { connectingTo_ = peal::cudasim::callCount(); }
  uint64_t connectingFrom() const { return connectingFrom_; }
  uint64_t connectingTo() const { return connectingTo_; }

 private:
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> connectingFrom_{0}, connectingTo_{0};  // CUDA calls, of all ranks; 0: none
};

// What a rank does with its communicator, as a careful program would: after an error it aborts. The buffer
// holds kInjectedCount floats.
using Use = std::function<void(pealComm_t comm, int rank, int device, const GpuStream& stream,
                               const GpuBuffer& buffer, Outcomes& outcomes)>;
constexpr size_t kInjectedCount = 600;

// Sanitizers are slow: under them every third call fails. Release builds try all.
#ifdef PEAL_SANITIZED
constexpr uint64_t kInjectionStep = 3;
#else
constexpr uint64_t kInjectionStep = 1;
#endif

struct Life {
  bool failed = false;        // somebody said so
  uint64_t connectCalls = 0;  // CUDA calls until the communicators were there
  uint64_t splitFrom = 0;     // the CUDA calls between which others were made of them
  uint64_t splitTo = 0;
  uint64_t calls = 0;  // in all
};

// CUDA tells that a graph has gone when it likes. What an aborted communicator left to its graphs is freed at
// the next chance after that, which programs give by making or ending another communicator.
inline void freeWhatGraphsHeld() {
  const Deadline deadline = Deadline::afterMs(kFarMs);
  peal::cuda::freeRetired();
  while (!peal::cudasim::liveObjects().empty() && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    peal::cuda::freeRetired();
  }
}

// The whole life of a communicator of two ranks. fail: what goes wrong from here on. If nobody says that
// something did, the results are right.
inline Life live(const std::vector<int>& devices, const Use& use, float expected,
                 const std::function<void()>& fail) {
  Life life;
  Outcomes outcomes;
  {
    std::vector<std::unique_ptr<GpuStream>> streams;
    std::vector<std::unique_ptr<GpuBuffer>> buffers;
    const std::vector<float> ones(kInjectedCount, 1.0F);
    std::vector<std::byte> input(kInjectedCount * sizeof(float));
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
        use(comms[index], rank, devices[index], *streams[index], *buffers[index], outcomes);
      });
    }
    peal::cudasim::failNothing();
    life.calls = peal::cudasim::callCount();
    life.failed = outcomes.anyFailed();
    life.splitFrom = outcomes.connectingFrom();
    life.splitTo = outcomes.connectingTo();
    for (const auto& buffer : buffers) {
      const std::vector<std::byte> bytes = buffer->read();
      std::vector<float> values(kInjectedCount);
      std::memcpy(values.data(), bytes.data(), bytes.size());
      EXPECT_TRUE(life.failed || values == std::vector<float>(kInjectedCount, expected)) << values[0];
    }
  }
  freeWhatGraphsHeld();
  expectNothingAlive();
  return life;
}

// Calls after whose failure peal goes on as well as before. Those that end something are logged, since
// nothing follows from them. A registered buffer that cannot be mapped is copied through slots. What
// cuPointerGetAttribute would say of whole allocations is what is taken for granted without it. While ranks
// connect, all of them then agree on windows in host memory.
inline bool mayGoOn(const std::string& call, uint64_t n, const Life& life) {
  const auto is = [&](const char* part) { return call.find(part) != std::string::npos; };
  const bool connecting = n <= life.connectCalls || (n >= life.splitFrom && n <= life.splitTo);
  return connecting || is("Destroy") || is("Free") || is("Disable") || is("SetDevice") || is("GetDevice") ||
         is("ExchangeStreamCaptureMode") || is("Query") || is("cuPointerGetAttribute") ||
         is("IpcOpenMemHandle") || is("IpcCloseMemHandle") || is("cuMemGetAddressRange");
}

inline void failEveryCall(const std::vector<int>& devices, const Use& use, float expected) {
  const Life clean = live(devices, use, expected, [] {});
  ASSERT_FALSE(clean.failed);
  ASSERT_GT(clean.calls, 50u);
  for (uint64_t n = 1; n <= clean.calls; n += kInjectionStep) {
    const auto start = std::chrono::steady_clock::now();
    const Life life = live(devices, use, expected, [&] { peal::cudasim::failCall("*", n); });
    const bool happened = life.calls >= n;  // looks at events come as often as it takes
    const std::string name = happened ? peal::cudasim::callName(n) : "none";
    EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce) << n << ": " << name;
    EXPECT_TRUE(life.failed || !happened || mayGoOn(name, n, life))
        << "call " << n << ", " << name << ", failed and nobody said so";
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "at call " << n << ", " << name;
      return;
    }
  }
}

// The deadline is short: a call whose error keeps a rank from going on may leave the other to it.
inline Environment injected() {
  return with(smallGpu(), {{"PEAL_TIMEOUT_MS", "3000"}, {"PEAL_INIT_TIMEOUT_MS", "3000"}});
}

}  // namespace peal::test

// What saving and loading allocate, counted at operator new: docs/CHECKPOINTS.md, "Memory". Not in builds
// with sanitizers, which have an operator new of their own.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "tests/support/limits.h"
#include "tests/zero/checkpoint_support.h"

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
std::atomic<size_t> liveBytes{0}, peakBytes{0};
std::atomic<int> large{0};     // allocations of more than all buffers may have together
thread_local int failsAt = 0;  // which allocation of this thread, from 1; 0: none

void* counted(size_t bytes) {
  const bool fails = failsAt > 0 && --failsAt == 0;
  void* const made = fails ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (made == nullptr) {
    throw std::bad_alloc();
  }
  large.fetch_add(bytes > kBufferBytes ? 1 : 0);
  const size_t live = liveBytes.fetch_add(malloc_usable_size(made)) + malloc_usable_size(made);
  for (size_t peak = peakBytes.load(); live > peak && !peakBytes.compare_exchange_weak(peak, live);) {
  }
  return made;
}

void freed(void* made) {
  liveBytes.fetch_sub(malloc_usable_size(made));
  std::free(made);
}

}  // namespace

void* operator new(size_t bytes) { return counted(bytes); }
void* operator new[](size_t bytes) { return counted(bytes); }
void operator delete(void* made) noexcept { freed(made); }
void operator delete[](void* made) noexcept { freed(made); }
void operator delete(void* made, size_t) noexcept { freed(made); }
void operator delete[](void* made, size_t) noexcept { freed(made); }

namespace peal::zero::test {
namespace {

// The most that body had allocated at once, and how often much.
struct Allocated {
  size_t peakBytes;
  int large;
};
template <class Body>
Allocated allocatedBy(const Body& body) {
  const size_t before = liveBytes.load();
  peakBytes.store(before);
  large.store(0);
  body();
  return {peakBytes.load() - before, large.load()};
}

constexpr uint64_t kTrained = 700'001, kFrozen = 600'001;  // each more than the buffers, in any type

struct SavedWay {
  std::string name;
  pealZeroMasterFormat_t master;
  bool isStochastic;
  int streams;  // of trained elements
  size_t bytesPerElement;
};

void expectBuffersOnly(const Allocated& allocated) {
  EXPECT_LT(allocated.peakBytes, kBufferBytes);
  EXPECT_EQ(allocated.large, 0);
}

TEST(CheckpointMemory, StaysWithinTheDocumentedBounds) {
  for (const SavedWay& way : {SavedWay{"fp32 masters", pealZeroMasterFp32, false, 3, 12},
                              {"stochastic rounding", pealZeroMasterFp32, true, 4, 14},
                              // Of so many masters some are half-way between two weights.
                              {"remainders", pealZeroMasterRemainder, false, 4, 14},
                              {"fp32 weights", pealZeroMasterIsWeight, false, 3, 12}}) {
    const CheckpointDirectory directory;
    onRanks(1, [&](int rank, pealComm_t comm) {
      pealZeroOptions_t options = checkpointOptions(2);
      options.master = way.master;
      options.stochasticRounding = way.isStochastic ? 1 : 0;
      options.reduceType = way.master == pealZeroMasterIsWeight ? pealZeroReduceFp32 : pealZeroReduceBf16;
      Shape shape{{kTrained, 0}, {kFrozen, 1}};
      shape[1].frozen = true;
      Trainer trainer(comm, rank, options, shape);
      trainer.step();
      Engine& engine = trainer.engine();
      SCOPED_TRACE(way.name);
      expectBuffersOnly(allocatedBy([&] { engine.save(directory / "whole", {}); }));
      const size_t snapshot = way.bytesPerElement * kTrained + 2 * kFrozen;
      const Allocated beside = allocatedBy([&] {
        engine.saveBegin(directory / "beside", {});
        engine.saveWait();
      });
      EXPECT_GE(beside.peakBytes, snapshot);
      EXPECT_LT(beside.peakBytes, snapshot + kBufferBytes);
      EXPECT_EQ(beside.large, way.streams + 1);
      expectBuffersOnly(allocatedBy([&] { engine.load(directory / "beside"); }));
    });
  }
}

// The others learn of it by the agreement: not at the deadline, nor because that rank leaves.
TEST(OutOfMemory, ARankThatCannotSealIsToldOf) {
  onRanks(3, [](int rank, pealComm_t comm) {
    pealZeroOptions_t options = checkpointOptions(1);
    Engine engine(comm, options);
    pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
    parameter.name = "w";
    parameter.dims = 1;
    parameter.extents[0] = 8;
    const float values[8] = {};
    engine.setInitial(engine.addParameter(parameter), values);
    failsAt = rank == 1 ? 1 : 0;
    EXPECT_EQ(pealZeroSeal(engine.handle()), rank == 1 ? pealSystemError : pealRemoteError);
    const std::string told = pealZeroGetLastError(engine.handle());
    EXPECT_CONTAINS(told,
                    rank == 1 ? "out of memory for the engine's tables" : "rank 1 cannot seal the engine");
    int meet = 1;  // nobody has left
    EXPECT_EQ(pealAllReduce(&meet, &meet, 1, pealInt32, pealSum, comm, nullptr), pealSuccess);
  });
}

// Whichever allocation fails on one rank: that one's engine is out of step, and its end tells the others.
template <class Call>
void failEachAllocation(const pealZeroOptions_t& options, bool sealFirst, const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  onRanks(3, [&](int rank, pealComm_t comm) {
    const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    bool met = true;
    for (int n = 1; met; ++n) {
      ASSERT_LT(n, 2000);
      {
        Engine engine(comm, options);
        pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
        parameter.name = "w";
        parameter.dims = 1;
        parameter.extents[0] = 8;
        engine.setInitial(engine.addParameter(parameter), values);
        if (sealFirst) {
          engine.seal();
          ASSERT_EQ(pealBarrier(comm, nullptr), pealSuccess);
        }
        failsAt = rank == 1 ? n : 0;
        const pealResult_t result = call(engine.handle());
        met = rank == 1 && failsAt == 0;
        failsAt = 0;
        if (met) {
          EXPECT_NE(result, pealSuccess) << "allocation " << n;
          if (sealFirst) {
            EXPECT_NE(call(engine.handle()), pealSuccess) << "allocation " << n;
            EXPECT_CONTAINS(std::string(pealZeroGetLastError(engine.handle())), "out of step");
          }
        }
      }
      int anyMet = met ? 1 : 0;
      ASSERT_EQ(pealAllReduce(&anyMet, &anyMet, 1, pealInt32, pealMax, comm, nullptr), pealSuccess);
      met = anyMet == 1;
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, ::peal::test::kHangs / 2);
}

TEST(OutOfMemory, WhileSealingAndReading) {
  failEachAllocation(checkpointOptions(1), false, [](pealZero_t zero) { return pealZeroSeal(zero); });
  failEachAllocation(checkpointOptions(2), true, pealZeroCheckReplicas);
  for (const int stage : {1, 3}) {
    for (const pealZeroTensor_t tensor : {pealZeroWeight, pealZeroMaster}) {
      failEachAllocation(checkpointOptions(stage), true, [&](pealZero_t zero) {
        float values[8];
        return pealZeroRead(zero, 0, tensor, values);
      });
    }
  }
}

}  // namespace
}  // namespace peal::zero::test

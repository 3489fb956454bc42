// The ZeRO engine on simulated GPUs: the bits of host memory at every stage, with nothing but its events
// between the trainer's stream and its own; checkpoints; what is refused.
#include "tests/cuda/injection.h"
#include "tests/cuda/zero_ranks.h"
#include "tests/support/scratch_folder.h"

namespace {

using namespace peal;
using namespace peal::test;

TEST(ZeroEngine, GivesTheHostsBitsAtEveryStage) {
  inProcess(smallGpu(), [] {
    for (const std::vector<int>& devices : kDevices) {
      for (int stage = 0; stage <= 3; ++stage) {
        expectHostsBits(devices, setupOf(stage, 150));
      }
    }
  });
}

TEST(ZeroEngine, AddsUpMicroBatchesAsTheHostDoes) {
  inProcess(smallGpu(), [] {
    for (int stage = 0; stage <= 3; ++stage) {
      ZeroSetup setup = setupOf(stage, 1000, 3);
      setup.steps = 2;
      expectHostsBits({0, 1}, setup);
      setup.options.reduceEachMicroBatch = 1;
      expectHostsBits({0, 1}, setup);
    }
  });
}

TEST(ZeroEngine, RoundsStochasticallySkipsAndFillsAsTheHostDoes) {
  inProcess(smallGpu(), [] {
    for (const int stage : {1, 2, 3}) {
      ZeroSetup setup = setupOf(stage, 150);
      setup.options.stochasticRounding = 1;
      setup.options.seed = 99;
      setup.nonFinite = 1;
      setup.withheld = 5;
      expectHostsBits({0, 1, 1}, setup);
    }
  });
}

// Shard groups: two of two, and four of one; micro-batches reduced in the group or each over all groups.
TEST(ZeroEngine, DividesInShardGroupsAsTheHostDoes) {
  inProcess(smallGpu(), [] {
    for (int stage = 1; stage <= 3; ++stage) {
      for (const int group : {1, 2}) {
        for (const int microBatches : {1, 2}) {
          for (const int each : {0, 1}) {
            SCOPED_TRACE(testing::Message() << "groups of " << group << ", each micro-batch " << each);
            if (each > microBatches - 1) {
              continue;
            }
            ZeroSetup setup = setupOf(stage, 300, microBatches);
            setup.options.shardGroup = group;
            setup.options.reduceEachMicroBatch = each;
            setup.options.reduceType = stage == 2 ? pealZeroReduceFp32 : pealZeroReduceBf16;
            setup.steps = 2;
            expectHostsBits({0, 1, 2, 3}, setup);
          }
        }
      }
    }
    // One micro-batch: the bits of stage 3 on all ranks.
    ZeroSetup grouped = setupOf(3, 300);
    grouped.options.shardGroup = 2;
    const ZeroOutcome flat = trainOn({0, 1, 2, 3}, setupOf(3, 300)).front();
    trainOn({0, 1, 2, 3}, grouped,
            [](ZeroRank& rank, int) { PEAL_ZERO_OK(rank.zero(), pealZeroCheckReplicas(rank.zero())); })
        .front()
        .expectEqual(flat);
  });
}

// Announced steps without a norm: buckets are reduced, updated and gathered by one kernel each.
TEST(ZeroEngine, FusesStepsAsTheHostDoes) {
  inProcess(smallGpu(), [] {
    for (const int stage : {1, 2}) {
      for (const std::vector<int>& devices : kDevices) {
        for (const bool random : {false, true}) {
          for (const int microBatches : {1, 2}) {
            ZeroSetup setup = setupOf(stage, 300, microBatches);
            setup.options.clipNorm = 0;
            setup.options.skipNonFinite = 0;
            setup.options.stochasticRounding = random ? 1 : 0;
            setup.options.bucketSlots = 8;
            SCOPED_TRACE(testing::Message() << devices.size() << " ranks, stage " << stage << ", random "
                                            << random << ", " << microBatches << " micro-batches");
            const ZeroOutcome expected = trainOn(hostRanks(devices.size()), setup).front();
            setup.announces = true;
            for (const ZeroOutcome& outcome : trainOn(devices, setup)) {
              outcome.expectEqual(expected);
              // Stage 2 adds micro-batches up after their reduction, which is two-phase on GPUs.
              EXPECT_EQ(outcome.fused.back() > 0, stage == 1 || microBatches == 1);
            }
          }
        }
      }
    }
  });
}

// Each parameter is a bucket, so there are some of one element and of none: most ranks own nothing of them.
TEST(ZeroEngine, FusesBucketsOfWhichARankOwnsNothing) {
  inProcess(smallGpu(), [] {
    for (const int stage : {1, 2}) {
      ZeroSetup setup = setupOf(stage, 2);
      setup.options.clipNorm = 0;
      setup.options.skipNonFinite = 0;
      setup.options.bucketSlots = 16;
      const ZeroOutcome expected = trainOn(hostRanks(2), setup).front();
      setup.announces = true;
      for (const ZeroOutcome& outcome : trainOn({0, 1}, setup)) {
        outcome.expectEqual(expected);
        EXPECT_GT(outcome.fused.back(), 0U) << "stage " << stage;
      }
    }
  });
}

TEST(ZeroEngine, SaysWhyAGpusBucketIsNotFused) {
  inProcess(smallGpu(), [] {
    ZeroSetup setup = setupOf(1, 1 << 20);  // one bucket, of two groups
    setup.options.clipNorm = 0;
    setup.options.skipNonFinite = 0;
    const auto says = [](const char* words) {
      return [words](ZeroRank& rank, int) {
        pealZeroFusedStatus_t status{};
        PEAL_ZERO_OK(rank.zero(), pealZeroGetFusedStatus(rank.zero(), &status));
        EXPECT_EQ(status.fusedBuckets, 0U);
        EXPECT_NE(std::string(status.reason).find(words), std::string::npos) << status.reason;
      };
    };
    (void)trainOn({0, 1}, setup, says("parameters of one group"));
    setup.options.master = pealZeroMasterRemainder;
    (void)trainOn({0, 1}, setup, says("remainders"));
    setup = setupOf(2, 300, 2);
    setup.options.clipNorm = 0;
    setup.options.skipNonFinite = 0;
    (void)trainOn({0, 1}, setup, says("added up after"));
  });
}

// A stream that is late, on one rank or for some units: what comes after must not overtake it.
TEST(ZeroEngine, OnlyEventsKeepTheOrder) {
  inProcess(smallGpu(), [] {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int microBatches : {1, 2}) {
        ZeroSetup setup = setupOf(stage, 150, microBatches);
        setup.options.rebuildBuckets = 0;  // would wait for everything between the two steps
        setup.steps = 2;
        const ZeroOutcome expected = trainOn(hostRanks(2), setup).front();
        for (const int lateRank : {0, 1}) {
          for (const int lateUnit : {0, 3}) {
            setup.delay = [=](int rank, int unit) {
              return std::chrono::milliseconds(rank == lateRank && unit == lateUnit ? 20 : 0);
            };
            SCOPED_TRACE(testing::Message()
                         << "stage " << stage << ", " << microBatches << " micro-batches, unit " << lateUnit
                         << " of rank " << lateRank << " late");
            for (const ZeroOutcome& outcome : trainOn({0, 1}, setup)) {
              outcome.expectEqual(expected);
            }
          }
        }
      }
    }
  });
}

TEST(ZeroEngine, TakesMicroBatchesAsTheyComeAsTheHostDoes) {
  inProcess(smallGpu(), [] {
    for (int stage = 0; stage <= 3; ++stage) {
      ZeroSetup setup = setupOf(stage, 150, 2);
      setup.microBatchesOf = [](uint64_t step) { return std::array{3, 1, 2}[step]; };
      expectHostsBits({0, 1}, setup);
    }
  });
}

// AdamW numbers that come between steps hold on the device from the next one on.
TEST(ZeroEngine, TakesOtherNumbersOfAGroupAsTheHostDoes) {
  inProcess(smallGpu(), [] {
    for (int stage = 0; stage <= 3; ++stage) {
      ZeroSetup setup = setupOf(stage, 150);
      const ZeroOutcome unchanged = trainOn(hostRanks(2), setup).front();
      setup.between = [](pealZero_t zero, int step) {
        pealZeroGroup_t later = PEAL_ZERO_GROUP_INITIALIZER;
        later.learningRateFactor = 0.25;
        later.beta2 = 0.9;
        later.weightDecay = 0.6;
        if (step == 0) {
          PEAL_ZERO_OK(zero, pealZeroSetGroup(zero, 1, &later));
        }
      };
      EXPECT_NE(trainOn(hostRanks(2), setup).front().master, unchanged.master);
      expectHostsBits({0, 1}, setup);
    }
  });
}

// What an operation waits before it runs: a tenth of a second the first time, so that whatever does not wait
// for it is done long before; then little.
std::chrono::milliseconds lateBy(int earlier) { return std::chrono::milliseconds(earlier == 0 ? 100 : 1); }

// The same of the engine's own stream, with as few buffers as there may be: a host function in it sleeps.
TEST(ZeroEngine, OperationsOfItsStreamMayBeLate) {
  using zero::test::Kind;
  inProcess(smallGpu(), [] {
    for (const int stage : {0, 1, 2, 3}) {
      ZeroSetup setup = setupOf(stage, 150, 2);
      setup.options.rebuildBuckets = 0;  // would wait for everything between the two steps
      setup.options.reduceEachMicroBatch = stage <= 1 ? 1 : 0;
      setup.options.bucketSlots = 1;
      setup.options.unitSlots = 2;
      setup.steps = 2;
      const ZeroOutcome expected = trainOn(hostRanks(2), setup).front();
      for (const Kind late : {stage == 0 ? Kind::AllReduce : Kind::ReduceScatter, Kind::Gather, Kind::Sum,
                              Kind::Control, Kind::Update}) {
        SCOPED_TRACE(testing::Message() << "stage " << stage << ", " << zero::test::nameOf(late) << " late");
        std::atomic<int> delays{0};  // in rank 1's queues
        setup.before = [&](int rank, Kind kind) {
          if (rank == 1 && kind == late) {
            std::this_thread::sleep_for(lateBy(delays++));
          }
        };
        for (const ZeroOutcome& outcome : trainOn({0, 1}, setup)) {
          outcome.expectEqual(expected);
        }
        EXPECT_EQ(delays > 0, late != Kind::Gather || stage > 0);
      }
    }
  });
}

// The same where sums of groups travel on, and where a bucket is reduced, updated and gathered at once.
TEST(ZeroEngine, SumsOfGroupsAndFusedStepsMayBeLate) {
  using zero::test::Kind;
  const auto expectLate = [](ZeroSetup setup, const std::vector<int>& devices,
                             std::initializer_list<Kind> kinds) {
    setup.steps = 2;
    setup.options.rebuildBuckets = 0;
    const ZeroOutcome expected = trainOn(hostRanks(devices.size()), setup).front();
    for (const Kind late : kinds) {
      SCOPED_TRACE(zero::test::nameOf(late));
      std::atomic<int> delays{0};
      setup.before = [&](int rank, Kind kind) {
        if (rank == 1 && kind == late) {
          std::this_thread::sleep_for(lateBy(delays++));
        }
      };
      for (const ZeroOutcome& outcome : trainOn(devices, setup)) {
        outcome.expectEqual(expected);
      }
      EXPECT_GT(delays, 0);
    }
  };
  inProcess(smallGpu(), [&] {
    ZeroSetup groups = setupOf(2, 150, 2);
    groups.options.shardGroup = 2;
    expectLate(groups, {0, 1, 2, 3}, {Kind::ReduceScatter, Kind::Replicas, Kind::Sum});
    ZeroSetup fused = setupOf(1, 150, 2);
    fused.options.clipNorm = 0;
    fused.options.skipNonFinite = 0;
    fused.announces = true;
    expectLate(fused, {0, 1}, {Kind::Fused, Kind::Control});
  });
}

// ---- CUDA calls that fail
// ---------------------------------------------------------------------------------

struct InjectedLife {
  std::string failure;               // the first failure's sentence; "": none
  pealResult_t ended = pealSuccess;  // the result of its communicator's end
  std::vector<float> master = std::vector<float>(300, 0.5F);
};

#define PEAL_LIVE(call)                                                              \
  if (const pealResult_t code = (call); code != pealSuccess) {                       \
    life.failure = pealZeroGetLastError(zero);                                       \
    EXPECT_NE(life.failure, "") << #call << " has no sentence, code " << (code + 0); \
    return;                                                                          \
  }

// Two micro-batches and a step of an engine whose gradients are a constant. A careful program: it stops at
// the first failure.
void stepOnce(pealZero_t zero, int device, const GpuStream* stream, InjectedLife& life) {
  pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
  parameter.name = "p";
  parameter.dims = 1;
  parameter.extents[0] = life.master.size();
  PEAL_LIVE(pealZeroSetStream(zero, stream != nullptr ? stream->peal() : nullptr));
  PEAL_LIVE(pealZeroAddParameter(zero, &parameter, nullptr));
  PEAL_LIVE(pealZeroSetInitial(zero, 0, life.master.data()));
  PEAL_LIVE(pealZeroSeal(zero));
  for (int microBatch = 0; microBatch < 2; ++microBatch) {
    uint16_t* gradient = nullptr;
    PEAL_LIVE(pealZeroUnitEnter(zero, 0, pealZeroBackward));
    PEAL_LIVE(pealZeroGradient(zero, 0, &gradient));
    const size_t bytes = life.master.size() * sizeof *gradient;
    if (stream == nullptr) {
      std::memset(gradient, 0x3c, bytes);
    } else if (cudaSetDevice(device) != cudaSuccess ||
               cudaMemsetAsync(gradient, 0x3c, bytes, stream->get()) != cudaSuccess) {
      life.failure = "the test's own call failed";
      return;
    }
    PEAL_LIVE(pealZeroGradientReady(zero, 0));
    PEAL_LIVE(pealZeroUnitLeave(zero, 0, pealZeroBackward));
    PEAL_LIVE(pealZeroEndMicroBatch(zero));
  }
  PEAL_LIVE(pealZeroStep(zero, 1e-2, 10, nullptr));
  PEAL_LIVE(pealZeroRead(zero, 0, pealZeroMaster, life.master.data()));
}

// Of both ranks. fail: what goes wrong once the communicators are there.
std::vector<InjectedLife> liveOn(const std::vector<int>& devices, const std::function<void()>& fail) {
  const std::vector<pealComm_t> comms = initAll(devices);
  std::vector<std::unique_ptr<GpuStream>> streams(devices.size());
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    streams[rank] = devices[rank] < 0 ? nullptr : std::make_unique<GpuStream>(devices[rank]);
  }
  std::vector<InjectedLife> lives(devices.size());
  fail();
  onThreads(static_cast<int>(devices.size()), [&](int rank) {
    const auto own = static_cast<size_t>(rank);
    pealZeroOptions_t options = PEAL_ZERO_OPTIONS_INITIALIZER;
    options.stage = 2;
    options.microBatches = 2;
    InjectedLife& life = lives[own];
    pealZero_t zero = nullptr;
    if (pealZeroCreate(&zero, comms[own], &options) == pealSuccess) {
      stepOnce(zero, devices[own], streams[own].get(), life);
    } else {
      life.failure = pealZeroGetLastError(nullptr);
    }
    EXPECT_EQ(pealZeroDestroy(zero), pealSuccess);
    life.ended = life.failure.empty() ? pealCommDestroy(comms[own]) : pealCommAbort(comms[own]);
  });
  cudasim::failNothing();
  for (size_t rank = 0; rank < lives.size(); ++rank) {
    // A rank that is through learns of the other's abort if that comes before its own end.
    const bool told = lives[rank].failure.empty() && !lives[1 - rank].failure.empty() &&
                      lives[rank].ended == pealRemoteError;
    EXPECT_TRUE(lives[rank].ended == pealSuccess || told) << lives[rank].ended;
  }
  return lives;
}

// An error with a sentence or the host's bits, whichever call it is; no hang, and nothing is left alive.
TEST(ZeroEngine, AnyCudaCallMayFail) {
  inProcess(
      injected(),
      [] {
        const std::vector<float> expected = liveOn({-1, -1}, [] {}).front().master;
        cudasim::countCalls();
        EXPECT_EQ(liveOn({0, 1}, [] { cudasim::countCalls(); }).front().master, expected);
        const uint64_t calls = cudasim::callCount();
        EXPECT_GT(calls, 200U);
        for (uint64_t n = 1; n <= calls; n += 47) {
          SCOPED_TRACE(testing::Message() << "call " << n);
          const auto start = std::chrono::steady_clock::now();
          for (const InjectedLife& life : liveOn({0, 1}, [&] {
                 cudasim::countCalls();
                 cudasim::failCall("*", n);
               })) {
            EXPECT_TRUE(!life.failure.empty() || life.master == expected);
          }
          EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce);
          freeWhatGraphsHeld();
        }
      },
      kHangs);
}

TEST(ZeroEngine, ArenasAreThePlannersAndReplicasAreCompared) {
  inProcess(smallGpu(), [] {
    for (int stage = 0; stage <= 3; ++stage) {
      ZeroSetup setup = setupOf(stage, 150, 2);
      setup.parameters = mixedTypes();
      (void)trainOn({0, 1}, setup, [](ZeroRank& rank, int) {
        const pealZeroArena_t* arenas = nullptr;
        size_t count = 0;
        PEAL_ZERO_OK(rank.zero(), pealZeroGetMemory(rank.zero(), &arenas, &count));
        EXPECT_GE(count, 5U);
        for (size_t i = 0; i < count; ++i) {
          EXPECT_EQ(arenas[i].bytes, arenas[i].plannedBytes) << arenas[i].name;
        }
        PEAL_ZERO_OK(rank.zero(), pealZeroCheckReplicas(rank.zero()));
      });
    }
  });
}

class ZeroCheckpoints : public testing::Test {
 protected:
  const ScratchFolder folder_{"peal-zero-gpu-"};
};

// Saved from GPUs, gone on with on GPUs, on host memory and on another number of ranks; and the other way
// round.
TEST_F(ZeroCheckpoints, GoOnFromGpusAndFromHosts) {
  inProcess(smallGpu(), [&] {
    for (const int stage : {1, 3}) {
      ZeroSetup setup = setupOf(stage, 150);
      setup.options.stochasticRounding = 1;
      setup.parameters = stage == 3 ? mixedTypes() : setup.parameters;
      const auto saveTo = [](const std::string& path) {
        return [path](ZeroRank& rank, int) {
          PEAL_ZERO_OK(rank.zero(), pealZeroSave(rank.zero(), path.c_str(), nullptr, 0));
          PEAL_ZERO_OK(rank.zero(), pealZeroSaveBegin(rank.zero(), (path + "-later").c_str(), nullptr, 0));
          PEAL_ZERO_OK(rank.zero(), pealZeroSaveWait(rank.zero()));
        };
      };
      const auto loadFrom = [](const std::string& path) {
        return [path](ZeroRank& rank, int) {
          PEAL_ZERO_OK(rank.zero(), pealZeroLoad(rank.zero(), path.c_str()));
          rank.step();
        };
      };
      const std::string gpu = folder_ / "gpu", host = folder_ / "host";
      (void)trainOn({0, 1}, setup, saveTo(gpu));
      (void)trainOn(hostRanks(2), setup, saveTo(host));
      ZeroSetup fresh = setup;
      fresh.steps = 0;
      const ZeroOutcome expected = trainOn(hostRanks(2), fresh, loadFrom(host)).front();
      EXPECT_EQ(expected.norms.size(), 1U);
      for (const std::string& path : {gpu, gpu + "-later", host, host + "-later"}) {
        SCOPED_TRACE(path);
        trainOn({0, 1}, fresh, loadFrom(path)).front().expectEqual(expected);
      }
      trainOn(hostRanks(2), fresh, loadFrom(gpu)).front().expectEqual(expected);
      const ZeroOutcome onThree = trainOn(hostRanks(3), fresh, loadFrom(host)).front();
      trainOn({0, 1, 1}, fresh, loadFrom(gpu)).front().expectEqual(onThree);
    }
  });
}

TEST(ZeroEngine, TracesItsStream) {
  inProcess(smallGpu(), [] {
    const ZeroSetup setup = setupOf(2, 150);
    (void)trainOn({0, 1}, setup, [](ZeroRank& rank, int) {
      std::vector<pealZeroSpan_t> spans;
      const auto keep = [](void* user, const pealZeroSpan_t* span) {
        static_cast<std::vector<pealZeroSpan_t>*>(user)->push_back(*span);
      };
      PEAL_ZERO_OK(rank.zero(), pealZeroSetTrace(rank.zero(), keep, &spans));
      rank.step();
      PEAL_ZERO_OK(rank.zero(), pealZeroSetTrace(rank.zero(), nullptr, nullptr));
      const auto collectives = std::count_if(spans.begin(), spans.end(), [](const pealZeroSpan_t& span) {
        return span.kind == pealZeroSpanCollective && span.beginNs <= span.endNs;
      });
      EXPECT_GE(collectives, 4);
    });
  });
}

TEST(ZeroEngine, RefusesStreamsThatAreNotItsDevices) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    onThreads(2, [&](int rank) {
      const pealComm_t comm = comms[static_cast<size_t>(rank)];
      const pealZeroOptions_t options = PEAL_ZERO_OPTIONS_INITIALIZER;
      pealZero_t zero = nullptr;
      ASSERT_EQ(pealZeroCreate(&zero, comm, &options), pealSuccess) << pealZeroGetLastError(nullptr);
      const GpuStream elsewhere(rank == 0 ? 1 : 0);
      EXPECT_EQ(pealZeroSetStream(zero, elsewhere.peal()), pealInvalidArgument);
      EXPECT_NE(std::string(pealZeroGetLastError(zero)).find("belongs to device"), std::string::npos);
      EXPECT_EQ(pealZeroDestroy(zero), pealSuccess);
    });
    destroyAll(comms);
    const std::vector<pealComm_t> host = initAll({PEAL_DEVICE_HOST});
    const pealZeroOptions_t options = PEAL_ZERO_OPTIONS_INITIALIZER;
    pealZero_t zero = nullptr;
    ASSERT_EQ(pealZeroCreate(&zero, host.front(), &options), pealSuccess);
    const GpuStream stream(0);
    EXPECT_EQ(pealZeroSetStream(zero, stream.peal()), pealInvalidArgument);
    EXPECT_EQ(pealZeroDestroy(zero), pealSuccess);
    destroyAll(host);
  });
}

}  // namespace

// The ZeRO engine on simulated GPUs with other types than bf16 and masters kept otherwise: the bits of host
// memory, also when buckets are rebuilt.
#include <array>

#include "tests/cuda/zero_ranks.h"

namespace {

using namespace peal;
using namespace peal::test;

// fp32 gradients, remainders in place of masters, fp32 weights.
struct Precisions {
  pealZeroMasterFormat_t master;
  pealZeroReduceType_t reduce;
};
constexpr Precisions kPrecisions[] = {{pealZeroMasterRemainder, pealZeroReduceBf16},
                                      {pealZeroMasterFp32, pealZeroReduceFp32},
                                      {pealZeroMasterRemainder, pealZeroReduceFp32},
                                      {pealZeroMasterIsWeight, pealZeroReduceFp32}};

TEST(ZeroEngine, KeepsMastersAndGradientsAsTheHostDoes) {
  inProcess(smallGpu(), [] {
    for (const Precisions& precisions : kPrecisions) {
      for (int stage = 0; stage <= 3; ++stage) {
        for (const int microBatches : {1, 2}) {
          SCOPED_TRACE(testing::Message()
                       << "master " << precisions.master << ", reduce " << precisions.reduce);
          ZeroSetup setup = setupOf(stage, 300, microBatches);
          setup.options.master = precisions.master;
          setup.options.reduceType = precisions.reduce;
          setup.nonFinite = 1;
          expectHostsBits({0, 1, 1}, setup);
        }
      }
    }
    ZeroSetup random = setupOf(2, 300);
    random.options.reduceType = pealZeroReduceFp32;
    random.options.stochasticRounding = 1;
    random.options.seed = 7;
    expectHostsBits({0, 1}, random);
  });
}

// Gradients come in another order than was assumed, so buckets are rebuilt after the first step: the state
// moves, and no bit changes.
TEST(ZeroEngine, RebuildsBucketsAsTheHostDoes) {
  inProcess(smallGpu(), [] {
    for (int stage = 0; stage <= 2; ++stage) {
      for (const Precisions& precisions :
           {Precisions{pealZeroMasterFp32, pealZeroReduceBf16}, kPrecisions[0], kPrecisions[3]}) {
        ZeroSetup setup = setupOf(stage, 300);
        setup.options.master = precisions.master;
        setup.options.reduceType = precisions.reduce;
        setup.options.bucketSlots = 8;
        setup.options.stochasticRounding = precisions.master == pealZeroMasterFp32 ? 1 : 0;
        setup.inOrderOfRegistration = true;
        expectHostsBits({0, 1, 1}, setup);
        std::array<uint64_t, 2> calls{};  // of first values and of what was moved, on rank 0
        std::array<ZeroOutcome, 2> outcomes;
        for (const int rebuilds : {0, 1}) {
          setup.options.rebuildBuckets = rebuilds;
          outcomes[static_cast<size_t>(rebuilds)] =
              trainOn({0, 1, 1}, setup, [&](ZeroRank& rank, int number) {
                pealZeroCounters_t counters{};
                PEAL_ZERO_OK(rank.zero(), pealZeroGetCounters(rank.zero(), &counters));
                if (number == 0) {
                  calls[static_cast<size_t>(rebuilds)] = counters.calls[pealZeroStart];
                }
              }).front();
        }
        // The order of gradients; below stage 0 also the planes of the state, and the weights once more.
        EXPECT_GT(calls[1], calls[0] + (stage == 0 ? 0 : 5));
        outcomes[0].expectEqual(outcomes[1]);
      }
    }
  });
}

TEST(ZeroEngine, MixesTypesAsTheHostDoes) {
  inProcess(smallGpu(), [] {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const Precisions& precisions :
           {Precisions{pealZeroMasterFp32, pealZeroReduceBf16},
            Precisions{pealZeroMasterFp32, pealZeroReduceFp32}, kPrecisions[0]}) {
        SCOPED_TRACE(testing::Message()
                     << "master " << precisions.master << ", reduce " << precisions.reduce);
        ZeroSetup setup = setupOf(stage, 300, 2);
        setup.parameters = mixedTypes();
        setup.options.master = precisions.master;
        setup.options.reduceType = precisions.reduce;
        setup.options.bucketSlots = 8;
        setup.inOrderOfRegistration = true;  // buckets are rebuilt
        expectHostsBits({0, 1, 1}, setup);
      }
    }
    ZeroSetup grouped = setupOf(3, 300);
    grouped.parameters = mixedTypes();
    grouped.options.shardGroup = 2;
    expectHostsBits({0, 1, 2, 3}, grouped);
    ZeroSetup fused = setupOf(1, 300);
    fused.parameters = mixedTypes();
    fused.options.clipNorm = 0;
    fused.options.skipNonFinite = 0;
    const ZeroOutcome expected = trainOn(hostRanks(2), fused).front();
    fused.announces = true;
    for (const ZeroOutcome& outcome : trainOn({0, 1}, fused)) {
      outcome.expectEqual(expected);
      EXPECT_GT(outcome.fused.back(), 0U);
    }
  });
}

}  // namespace

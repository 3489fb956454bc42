// The kernels of collectives on simulated ranks: every collective, algorithm and protocol; numbers of ranks,
// slots and channels; sizes around a slot and a round; types, operations, places; in all modes of the
// simulator. Bit for bit what a plain loop over the ranks gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "lib/reduce/reduce.h"
#include "tests/cuda/draws.h"
#include "tests/cuda/kernel_collectives.h"
#include "tests/cuda/kernel_modes.h"

namespace peal::cuda::test {
namespace {

struct Text {
  int kind;
  Algorithm algorithm;
};
constexpr Text kTexts[] = {
    {pealStatAllReduce, Algorithm::Ring},        {pealStatAllReduce, Algorithm::OneShot},
    {pealStatAllReduce, Algorithm::TwoShot},     {pealStatReduceScatter, Algorithm::Ring},
    {pealStatReduceScatter, Algorithm::OneShot}, {pealStatAllGather, Algorithm::Ring},
    {pealStatAllGather, Algorithm::OneShot},     {pealStatBroadcast, Algorithm::Ring},
    {pealStatBroadcast, Algorithm::OneShot},     {pealStatReduce, Algorithm::Ring},
    {pealStatReduce, Algorithm::OneShot},        {pealStatBarrier, Algorithm::OneShot},
};
constexpr Protocol kAllProtocols[] = {Protocol::Simple, Protocol::LL, Protocol::LL128};

// algorithms/ring.h: the fewest slots that cannot deadlock.
int leastSlots(const Text& text, int ranks) {
  if (text.algorithm != Algorithm::Ring || ranks == 1) {
    return 1;
  }
  const bool forwards = ranks > 2 && (text.kind == pealStatReduceScatter || text.kind == pealStatAllGather);
  return text.kind == pealStatAllReduce || forwards ? 2 : 1;
}

bool isReduction(int kind) {
  return kind == pealStatAllReduce || kind == pealStatReduceScatter || kind == pealStatReduce;
}

size_t pick(std::mt19937_64& random, size_t below) { return random() % below; }

// Everything that is not swept is drawn.
CollectiveCase draw(const Text& text, Protocol protocol, const KernelRanks& ranks, std::mt19937_64& random) {
  static constexpr size_t kMisalignments[] = {0, 0, 0, 0, 8, 4, 1};
  CollectiveCase test;
  test.kind = text.kind;
  test.algorithm = text.algorithm;
  test.protocol = protocol;
  test.type = pick(random, 2) == 0 ? pealFloat32 : static_cast<pealDataType_t>(pick(random, pealNumTypes));
  if (isReduction(text.kind)) {
    test.op = static_cast<pealRedOp_t>(pick(random, pealNumOps));
    test.preMultiply = test.op == pealSum && pick(random, 3) == 0;
  }
  test.root = static_cast<int>(pick(random, static_cast<size_t>(ranks.size())));
  test.inPlace = pick(random, 2) == 0;
  test.references = pick(random, 3) != 0;
  test.misalignment = kMisalignments[pick(random, std::size(kMisalignments))];
  test.seed = random();
  if (text.kind == pealStatBarrier) {
    return test;
  }
  const size_t capacity = ranks.shape().payloadBytes(protocol) / elementBytes(test.type);
  test.chunkCount = pick(random, 3) == 0 ? 1 + pick(random, capacity) : 0;
  const size_t chunk = test.chunkCount == 0 ? capacity : test.chunkCount;
  // Elements of one round, as `count` counts.
  const bool perRank = text.kind == pealStatAllReduce && text.algorithm != Algorithm::OneShot;
  const size_t round = chunk * (perRank ? static_cast<size_t>(ranks.size()) : 1);
  const size_t counts[] = {0, 1, 31, round - 1, round, round + 1, 2 * round + 13, 4 * round + 1};
  test.count = counts[pick(random, std::size(counts))];
  const bool scattered = text.kind == pealStatReduceScatter || text.kind == pealStatAllGather;
  if (scattered && pick(random, 3) == 0) {
    test.starts.push_back(0);
    for (int rank = 0; rank < ranks.size(); ++rank) {
      test.starts.push_back(test.starts.back() + (pick(random, 4) == 0 ? 0 : pick(random, 2 * chunk)));
    }
  }
  return test;
}

// All texts and protocols, one launch after the other on the same counters. Returns what went wrong first.
std::string playAll(KernelRanks& ranks, Mode mode, std::mt19937_64& random) {
  for (const Protocol protocol : kAllProtocols) {
    if (protocol == Protocol::LL && ranks.options().messagesBefore != 0) {
      continue;  // lines.cuh: what was never written has flag 0
    }
    for (const Text& text : kTexts) {
      for (int i = 0; i < kTestDraws && ranks.options().slots >= leastSlots(text, ranks.size()); ++i) {
        const CollectiveCase test = draw(text, protocol, ranks, random);
        const InMode inMode(mode, static_cast<int64_t>(random() >> 32));
        if (const std::string wrong = runCase(ranks, test); !wrong.empty()) {
          return describe(test) + ": " + wrong;
        }
      }
    }
  }
  return {};
}

class Collectives : public testing::TestWithParam<int> {};

TEST_P(Collectives, GiveTheBitsOfAPlainLoop) {
  int world = 0;
  for (const int slots : {1, 2, 4}) {
    for (const int channels : {1, 2, 3}) {
      RanksOptions options{.ranks = GetParam(), .channels = channels, .slots = slots};
      options.threads = world % 4 == 3 ? 96 : 64;
      options.slotBytes = world % 3 == 2 ? 4480 : 640;  // large enough for references, or not
      options.messagesBefore = world % 5 == 4 ? (uint64_t{1} << 32) - 7 : 0;
      const auto mode = static_cast<Mode>(world++ % kModes);
      KernelRanks ranks(options);
      std::mt19937_64 random(static_cast<uint64_t>(100 * options.ranks + world));
      const std::string wrong = playAll(ranks, mode, random);
      ASSERT_TRUE(wrong.empty()) << wrong << " (" << slots << " slots, " << channels << " channels, mode "
                                 << kModeNames[static_cast<int>(mode)] << ")";
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 3, 4, 5, 8));

// Registered buffers: nothing passes through slots, in place and not, and the result is the same.
TEST(References, AreReadInPlace) {
  KernelRanks ranks({.ranks = 4, .channels = 2, .slots = 2, .slotBytes = 4480});
  const InMode inMode(Mode::WeakStarve, 5);
  for (const Text& text : kTexts) {
    for (const bool inPlace : {false, true}) {
      CollectiveCase test;
      test.kind = text.kind;
      test.algorithm = text.algorithm;
      test.count = text.kind == pealStatBarrier ? 0 : 5000;
      test.root = 2;
      test.inPlace = inPlace;
      test.references = true;
      const std::string wrong = runCase(ranks, test);
      EXPECT_TRUE(wrong.empty()) << describe(test) << ": " << wrong;
    }
  }
}

// Every type and operation, pre-multiplied too, through each protocol.
TEST(Types, ReduceAlike) {
  KernelRanks ranks({.ranks = 3, .channels = 1, .slots = 2});
  for (int type = 0; type < pealNumTypes; ++type) {
    for (const Protocol protocol : kAllProtocols) {
      for (int op = 0; op <= pealNumOps; ++op) {  // the last: a pre-multiplied sum
        for (const Algorithm algorithm : {Algorithm::Ring, Algorithm::OneShot, Algorithm::TwoShot}) {
          CollectiveCase test;
          test.algorithm = algorithm;
          test.protocol = protocol;
          test.type = static_cast<pealDataType_t>(type);
          test.preMultiply = op == pealNumOps;
          test.op = test.preMultiply ? pealSum : static_cast<pealRedOp_t>(op);
          test.count = 101;
          test.seed = static_cast<uint64_t>(type * 100 + op);
          const std::string wrong = runCase(ranks, test);
          EXPECT_TRUE(wrong.empty()) << describe(test) << ": " << wrong;
        }
      }
    }
  }
}

// LL's flags have 32 bits: once in 2^30 messages each slot is written to its end, however short the
// message.
TEST(LowLatency, OldFlagsAreSweptAway) {
  const uint64_t before = (uint64_t{1} << 30) - 1;
  KernelRanks ranks({.ranks = 2, .channels = 1, .slots = 2, .messagesBefore = before});
  CollectiveCase test;
  test.algorithm = Algorithm::OneShot;
  test.protocol = Protocol::LL;
  test.count = 5;
  for (int launch = 0; launch < 3; ++launch) {
    ASSERT_EQ(runCase(ranks, test), "");
  }
  const BoxShape& shape = ranks.shape();
  const CommView view = ranks.view(0);
  uint64_t seen[2] = {};
  for (uint64_t number = before + 1; number <= before + 3; ++number) {
    seen[(number - 1) % 2] = number;
  }
  for (int slot = 0; slot < 2; ++slot) {
    const auto* words = reinterpret_cast<const uint32_t*>(cudasim::toHost(view.inbox[1]) +
                                                          shape.lowSlot(0, Protocol::LL, slot));
    // The third message is short and swept nothing, so its slot still shows the first one's sweep at the
    // end.
    const size_t last = 64 / 4 + shape.payloadBytes(Protocol::LL) / 16 * 8 - 1;
    EXPECT_EQ(words[1], static_cast<uint32_t>(seen[slot]));
    EXPECT_EQ(words[last], slot == 1 ? static_cast<uint32_t>(before + 1) : static_cast<uint32_t>(before + 2));
  }
}

}  // namespace
}  // namespace peal::cuda::test

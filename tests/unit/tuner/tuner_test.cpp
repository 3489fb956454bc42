// What the tuner chooses, what it refuses, and what it says.
#include "lib/tuner/tuner.h"

#include <gtest/gtest.h>

#include "lib/tuner/predict.h"
#include "peal/peal.h"
#include "tests/algorithms/shapes.h"

namespace peal::test {
namespace {

const LinkTable kLinks{{1, 0.3, 1.0 / 8000}, {30, 5, 1.0 / 125}};
constexpr int kKinds[] = {pealStatAllReduce, pealStatReduceScatter, pealStatAllGather,
                          pealStatBroadcast, pealStatReduce,        pealStatBarrier};

TunerQuestion questionOn(const Placement& placement, int kind, size_t bytes) {
  return {.kind = kind,
          .bytes = bytes,
          .size = placement->ranks,
          .slotBytes = 65536,
          .nodes = &*placement,
          .slots = 4,
          .links = &kLinks};
}

Algorithm chosen(const TunerQuestion& question) {
  const Result<Choice> choice = choose(question);
  EXPECT_TRUE(choice) << choice.error().message;
  return choice ? choice->algorithm : Algorithm::Ring;
}

TEST(Tuner, GoesBySizeOnOneNode) {
  TunerQuestion question{.kind = pealStatAllReduce, .bytes = 16384, .size = 4, .slotBytes = 65536};
  EXPECT_EQ(chosen(question), Algorithm::OneShot);
  question.bytes = 16385;
  EXPECT_EQ(chosen(question), Algorithm::TwoShot);
  const Placement together({0, 0, 0, 0});
  question.nodes = &*together;  // one node named
  question.links = &kLinks;
  EXPECT_EQ(chosen(question), Algorithm::TwoShot);
  question.kind = pealStatReduceScatter;
  EXPECT_EQ(chosen(question), Algorithm::OneShot);
}

// Only where all ranks reach each other's memory, of direct algorithms, and at sizes where it pays.
TEST(Tuner, MessagesNeedNoSlotWhereRanksReachEachOther) {
  TunerQuestion question{.kind = pealStatAllGather, .bytes = 1 << 20, .size = 2, .slotBytes = 65536};
  EXPECT_EQ(choose(question)->chunkBytes, 65536u);
  question.reachesAll = true;
  EXPECT_GE(choose(question)->chunkBytes, question.bytes);
  question.kind = pealStatReduceScatter;
  EXPECT_GE(choose(question)->chunkBytes, question.bytes);
  question.bytes = 32768;  // a slot costs less than a call of the system
  EXPECT_EQ(choose(question)->chunkBytes, 65536u);
  question.bytes = 1 << 20;
  question.kind = pealStatAllReduce;
  EXPECT_EQ(choose(question)->chunkBytes, 65536u);
  question.size = 3;
  EXPECT_EQ(choose(question)->chunkBytes, 524288u);
  question.bytes = 64 << 20;
  EXPECT_EQ(choose(question)->chunkBytes, 65536u);
  question.bytes = 1 << 20;
  question.forced = "ring";
  EXPECT_EQ(choose(question)->chunkBytes, 65536u);
  question.forced = "auto";
  question.kind = pealStatBroadcast;
  EXPECT_EQ(choose(question)->chunkBytes, 65536u);
}

TEST(Tuner, TwoRanksRunAheadInTwoShotAllReduces) {
  TunerQuestion question{
      .kind = pealStatAllReduce, .bytes = 1 << 20, .size = 2, .slotBytes = 65536, .slots = 4};
  EXPECT_EQ(choose(question)->ahead, stagesAhead(Algorithm::TwoShot, 4));
  EXPECT_GT(choose(question)->ahead, 0);
  question.size = 3;
  EXPECT_EQ(choose(question)->ahead, 0);
}

TEST(Tuner, SpendsFewMessagesOnSmallCallsAndFewBytesOnLargeOnes) {
  const Placement many(Placement::byNode({8, 8, 8, 8}));
  EXPECT_EQ(chosen(questionOn(many, pealStatAllReduce, 8)), Algorithm::Tree);
  EXPECT_EQ(chosen(questionOn(many, pealStatBarrier, 0)), Algorithm::Tree);
  EXPECT_EQ(chosen(questionOn(many, pealStatBroadcast, 8)), Algorithm::Tree);
  EXPECT_EQ(chosen(questionOn(many, pealStatReduce, 8)), Algorithm::Tree);
  for (const int kind : kKinds) {
    if (kind != pealStatBarrier) {
      EXPECT_EQ(chosen(questionOn(many, kind, size_t{64} << 20)), Algorithm::Hierarchical) << kind;
    }
  }
}

// Nothing that is legal is predicted to be quicker than what is chosen, and its slots are enough.
TEST(Tuner, TakesTheQuickestCandidate) {
  for (const std::vector<int>& sizes :
       {std::vector<int>{1, 1}, {2, 2}, {4, 4}, {3, 1}, {2, 2, 2}, {8, 8, 8}}) {
    const Placement placement(Placement::roundRobin(sizes));
    for (const int kind : kKinds) {
      for (size_t bytes = kind == pealStatBarrier ? 0 : 8; bytes <= size_t{64} << 20; bytes = bytes * 8 + 8) {
        for (const int slots : {2, 3, 4, 16}) {
          TunerQuestion question = questionOn(placement, kind, bytes);
          question.slots = slots;
          const std::vector<Candidate> all = candidates(question);
          const Result<Choice> choice = choose(question);
          ASSERT_TRUE(choice) << choice.error().message;
          ASSERT_FALSE(all.empty());
          EXPECT_EQ(choice->algorithm, all[0].choice.algorithm);
          for (const Candidate& candidate : all) {
            EXPECT_GE(candidate.us, all[0].us);
            EXPECT_LE(candidate.choice.chunkBytes, question.slotBytes);
            const AlgorithmId id = algorithmOf(kind, candidate.choice.algorithm, true);
            EXPECT_LE(traitsOf(id, *placement, candidate.choice.ahead).slots, slots) << candidate.text;
            EXPECT_STREQ(candidate.text, traitsOf(id, *placement).name);
          }
          EXPECT_NE(reasonFor(question, *choice, all), "");
        }
      }
    }
  }
}

TEST(Tuner, KeepsToRankOrderWhenAsked) {
  const Placement placement(Placement::byNode({4, 4}));
  for (const size_t bytes : {size_t{8}, size_t{64} << 20}) {
    for (const int kind : {pealStatAllReduce, pealStatReduceScatter, pealStatReduce}) {
      TunerQuestion question = questionOn(placement, kind, bytes);
      question.deterministic = true;
      const Algorithm algorithm = chosen(question);
      EXPECT_EQ(traitsOf(algorithmOf(kind, algorithm, true), *placement).order, SumOrder::Rank) << kind;
      for (const char* forced : {"ring", "hierarchical", "tree", "hierarchical_ring"}) {
        question.forced = forced;
        const Result<Choice> choice = choose(question);
        ASSERT_FALSE(choice) << forced;
        EXPECT_EQ(choice.error().code, pealInvalidUsage);
        EXPECT_NE(choice.error().message.find("PEAL_ALGO=" + std::string(forced) +
                                              ", or pealCommForceAlgorithm of it, is not legal for this "
                                              "operation with the deterministic option; "
                                              "legal are: one_shot, two_shot."),
                  std::string::npos)
            << choice.error().message;
      }
    }
    // Nothing is summed: everything is legal.
    TunerQuestion gather = questionOn(placement, pealStatAllGather, bytes);
    gather.deterministic = true;
    gather.forced = "hierarchical";
    EXPECT_EQ(chosen(gather), Algorithm::Hierarchical);
  }
}

TEST(Tuner, ForcesWhatThereIsAndTheDirectFormOfWhatThereIsNot) {
  const Placement placement(Placement::byNode({2, 2}));
  const auto forced = [&](int kind, const char* name, bool severalNodes) {
    TunerQuestion question = questionOn(placement, kind, 4096);
    question.forced = name;
    question.nodes = severalNodes ? &*placement : nullptr;
    return chosen(question);
  };
  EXPECT_EQ(forced(pealStatAllReduce, "hierarchical", true), Algorithm::Hierarchical);
  EXPECT_EQ(forced(pealStatAllReduce, "hierarchical", false), Algorithm::TwoShot);
  EXPECT_EQ(forced(pealStatBroadcast, "hierarchical", false), Algorithm::OneShot);
  EXPECT_EQ(forced(pealStatAllReduce, "tree", false), Algorithm::Tree);
  EXPECT_EQ(forced(pealStatAllGather, "tree", true), Algorithm::OneShot);
  EXPECT_EQ(forced(pealStatBarrier, "hierarchical", true), Algorithm::Tree);
  EXPECT_EQ(forced(pealStatBarrier, "ring", true), Algorithm::OneShot);
  EXPECT_EQ(forced(pealStatReduce, "two_shot", true), Algorithm::OneShot);
  EXPECT_EQ(forced(pealStatReduce, "ring", true), Algorithm::Ring);
  EXPECT_EQ(forced(pealStatAllReduce, "hierarchical_ring", true), Algorithm::HierarchicalRing);
  EXPECT_EQ(forced(pealStatAllReduce, "hierarchical_ring", false), Algorithm::TwoShot);
  EXPECT_EQ(forced(pealStatReduce, "hierarchical_ring", true), Algorithm::Hierarchical);
  EXPECT_EQ(forced(pealStatBarrier, "hierarchical_ring", true), Algorithm::Tree);
}

// Every rank on a node of its own: the ring between nodes is the ring.
TEST(Tuner, HasNoSecondRingWhereEveryRankIsANode) {
  const Placement apart(Placement::byNode({1, 1, 1}));
  TunerQuestion question = questionOn(apart, pealStatAllReduce, 4096);
  question.forced = "hierarchical_ring";
  EXPECT_EQ(chosen(question), Algorithm::Ring);
}

// A node that owns most of the array would send all of it to each of the others; round the ring once.
TEST(Tuner, TakesTheRingBetweenUnevenNodesWhereBytesCount) {
  const Placement uneven(Placement::byNode({8, 2, 2, 2}));
  for (const int kind : {pealStatAllReduce, pealStatAllGather}) {
    EXPECT_EQ(chosen(questionOn(uneven, kind, size_t{64} << 20)), Algorithm::HierarchicalRing) << kind;
    EXPECT_NE(chosen(questionOn(uneven, kind, 1024)), Algorithm::HierarchicalRing) << kind;
  }
}

// Ranks that share processors meet dearly, and copy less well than they sum from slots.
TEST(Tuner, TakesOneShotForMoreWhereRanksOutnumberProcessors) {
  TunerQuestion question{
      .kind = pealStatAllReduce, .bytes = 32768, .size = 8, .slotBytes = 65536, .crowded = true};
  EXPECT_EQ(chosen(question), Algorithm::OneShot);
  question.bytes = 32769;
  EXPECT_EQ(chosen(question), Algorithm::TwoShot);
  question.bytes = 32768;
  question.crowded = false;
  EXPECT_EQ(chosen(question), Algorithm::TwoShot);
}

}  // namespace
}  // namespace peal::test

// Shard groups (HSDP): the bits of one group, the volumes and arenas of the formulas, and replicas that are
// compared.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/zero/arenas.h"
#include "tests/zero/breadth.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

pealZeroOptions_t groupedOptions(int stage, int group, size_t bucketBytes = 150, int microBatches = 1) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.shardGroup = group;
  options.bucketBytes = bucketBytes;
  options.microBatches = microBatches;
  options.clipNorm = 0.5;
  return options;
}

// Gradients in which the order of a sum over ranks shows: large ones of both signs cancel, and what small
// ones leave behind depends on which large ones came before them.
uint16_t cancelling(int rank, uint64_t element, uint16_t gradient) {
  const int turn = (rank + static_cast<int>(element)) % 4;
  const auto large = static_cast<float>(1 << 18);
  return turn == 0 ? roundToBf16(large) : turn == 2 ? roundToBf16(-large) : gradient;
}

struct GroupedRun {
  std::vector<float> state;  // master, moments, weights
  std::vector<double> norms;
  bool operator==(const GroupedRun& other) const {
    return state.size() == other.state.size() && norms == other.norms &&
           std::memcmp(state.data(), other.state.data(), state.size() * sizeof(float)) == 0;
  }
};

// unforeseen: so many micro-batches in each step, said by a NoSync; 0: the options' number.
GroupedRun trainGrouped(int ranks, const pealZeroOptions_t& options, const Shape& shape = unevenShape(),
                        int steps = 3, int unforeseen = 0) {
  std::vector<GroupedRun> runs(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, shape);
    trainer.tamper = [&](size_t p, int, uint16_t* gradient) {
      for (uint64_t i = 0; i < shape[p].elements; ++i) {
        gradient[i] = cancelling(rank, i, gradient[i]);
      }
    };
    if (unforeseen > 0) {
      trainer.microBatchesOf = [&](uint64_t) { return unforeseen; };
    }
    GroupedRun& run = runs[static_cast<size_t>(rank)];
    for (int i = 0; i < steps; ++i) {
      run.norms.push_back(trainer.step().gradientNorm);
      trainer.engine().checkReplicas();
    }
    for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2, pealZeroWeight}) {
      const std::vector<float> values = trainer.read(tensor);
      run.state.insert(run.state.end(), values.begin(), values.end());
    }
  });
  for (const GroupedRun& run : runs) {
    EXPECT_TRUE(run == runs[0]);
  }
  return runs[0];
}

Shape shapeWithFrozen() {
  Shape shape = unevenShape();
  shape[2].frozen = true;
  shape[8].frozen = true;  // all of its unit
  return shape;
}

TEST(Groups, GiveTheBitsOfOneGroup) {
  for (const Shape& shape : {unevenShape(), shapeWithFrozen()}) {
    for (const auto& [ranks, groups] :
         {std::pair<int, std::vector<int>>{2, {1, 2}}, {4, {1, 2}}, {6, {2, 3}}}) {
      if (ranks > kMostGroupedRanks) {
        continue;
      }
      const GroupedRun expected = trainGrouped(ranks, groupedOptions(0, 0), shape);
      for (const int group : groups) {
        for (int stage = 1; stage <= 3; ++stage) {
          for (const size_t bucketBytes : {size_t{2}, size_t{1} << 20}) {
            EXPECT_TRUE(trainGrouped(ranks, groupedOptions(stage, group, bucketBytes), shape) == expected)
                << ranks << " ranks in groups of " << group << ", stage " << stage << ", buckets of "
                << bucketBytes;
          }
        }
      }
    }
  }
}

TEST(Groups, GiveTheBitsOfOneGroupWhenEachMicroBatchIsReduced) {
  pealZeroOptions_t options = groupedOptions(2, 0, 150, 3);
  const GroupedRun expected = trainGrouped(4, options);
  options.reduceEachMicroBatch = 1;
  for (const int group : {1, 2}) {
    for (options.stage = 1; options.stage <= 3; ++options.stage) {
      options.shardGroup = group;
      EXPECT_TRUE(trainGrouped(4, options) == expected) << "group " << group << ", stage " << options.stage;
    }
  }
}

// An engine that could add up several does as one that was made for one where a step has only one.
TEST(Groups, GiveTheBitsOfOneGroupInStepsOfOneMicroBatch) {
  const GroupedRun expected = trainGrouped(4, groupedOptions(0, 0));
  for (int stage = 1; stage <= 3; ++stage) {
    EXPECT_TRUE(trainGrouped(4, groupedOptions(stage, 2, 150, 2), unevenShape(), 3, 1) == expected) << stage;
  }
}

// Summing up micro-batches in a group first is another order: that of this loop, whatever the buckets are.
TEST(Groups, AddUpMicroBatchesInTheDocumentedOrder) {
  const Shape shape = unevenShape();
  constexpr int kRanks = 4, kGroup = 2, kMicroBatches = 3;
  double squares = 0, flatSquares = 0, tokens = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    tokens += 16 + 5 * rank;
  }
  for (size_t p = 0; p < shape.size(); ++p) {
    for (uint64_t i = 0; i < shape[p].elements; ++i) {
      const uint16_t weight = roundToBf16(initialValue(p, i));
      const auto gradient = [&](int rank, int microBatch) {
        return widen(cancelling(rank, i, syntheticGradient(p, i, rank, 0, microBatch, weight)));
      };
      float total = 0, flatTotal = 0;
      for (int group = 0; group < kRanks / kGroup; ++group) {
        float sum = 0;
        for (int microBatch = 0; microBatch < kMicroBatches; ++microBatch) {
          for (int rank = group * kGroup; rank < (group + 1) * kGroup; ++rank) {
            sum += gradient(rank, microBatch);
          }
        }
        total += sum;
      }
      for (int microBatch = 0; microBatch < kMicroBatches; ++microBatch) {
        float sum = 0;
        for (int rank = 0; rank < kRanks; ++rank) {
          sum += gradient(rank, microBatch);
        }
        flatTotal += widen(roundToBf16(sum));
      }
      squares += std::pow(widen(roundToBf16(total)), 2);
      flatSquares += std::pow(widen(roundToBf16(flatTotal)), 2);
    }
  }
  const double norm = std::sqrt(squares) / tokens;
  EXPECT_GT(std::abs(std::sqrt(flatSquares) / tokens / norm - 1), 1e-6) << "this test could not tell";
  const GroupedRun first = trainGrouped(kRanks, groupedOptions(2, kGroup, 150, kMicroBatches), shape);
  EXPECT_NEAR(first.norms[0] / norm, 1, 1e-13);
  EXPECT_TRUE(trainGrouped(kRanks, groupedOptions(2, kGroup, 2, kMicroBatches), shape) == first);
  EXPECT_TRUE(trainGrouped(kRanks, groupedOptions(3, kGroup, 150, kMicroBatches), shape) == first);
}

TEST(Groups, SendWhatThePlannerSays) {
  const Shape shape = unevenShape();
  constexpr uint64_t kSteps = 2;
  for (const auto& [ranks, group] : {std::pair<int, int>{4, 2}, {6, 3}, {6, 2}, {3, 1}, {4, 4}}) {
    for (const int m : {1, 3}) {
      for (const int each : {0, 1}) {
        pealZeroOptions_t options = groupedOptions(3, group, 150, m);
        options.reduceEachMicroBatch = each;
        std::vector<pealZeroCounters_t> counted(static_cast<size_t>(ranks));
        uint64_t psi = 0;
        onRanks(ranks, [&](int rank, pealComm_t comm) {
          Trainer trainer(comm, rank, options, shape);
          for (uint64_t step = 0; step < kSteps; ++step) {
            trainer.step();
          }
          counted[static_cast<size_t>(rank)] = trainer.engine().counters();
          if (rank == 0) {
            psi = trainer.elements();
          }
        });
        uint64_t inside = 0, insideBytes = 0, between = 0, betweenBytes = 0;
        for (const pealZeroCounters_t& rank : counted) {
          inside += rank.elementsSent[pealZeroReduceScatter] + rank.elementsSent[pealZeroAllGather];
          insideBytes += rank.bytesSent[pealZeroReduceScatter] + rank.bytesSent[pealZeroAllGather];
          between += rank.elementsSent[pealZeroReplicas];
          betweenBytes += rank.bytesSent[pealZeroReplicas];
        }
        const auto replicas = static_cast<uint64_t>(ranks / group);
        const uint64_t times = kSteps * static_cast<uint64_t>(each != 0 ? m : 1);
        // 3 m psi inside each group, and an all-reduce of psi / G elements over the replicas.
        EXPECT_EQ(inside,
                  kSteps * 3 * static_cast<uint64_t>(m) * replicas * static_cast<uint64_t>(group - 1) * psi);
        EXPECT_EQ(between, times * 2 * (replicas - 1) * psi);
        EXPECT_EQ(counted[0].calls[pealZeroReplicas], replicas > 1 ? times * 5 : 0);
        EXPECT_EQ(counted[0].calls[pealZeroReduceScatter], kSteps * static_cast<uint64_t>(m) * 5);

        pealZeroPlanInput_t input = defaultPlanInput();
        input.parameters = psi;
        input.ranks = ranks;
        input.group = group;
        input.units = 5;
        input.microBatches = m;
        input.reduceEachMicroBatch = each;
        input.replicaSumBytes = 4;
        const pealZeroPlanStage_t row = plan(input).stages[pealZeroPlanHsdp];
        const double total = ranks * static_cast<double>(kSteps);
        EXPECT_NEAR(row.groupBytesSent * total, static_cast<double>(insideBytes), 1e-6);
        EXPECT_NEAR(row.bytesSent * total, static_cast<double>(betweenBytes), 1e-6);
        EXPECT_EQ(row.allReduces * kSteps, counted[0].calls[pealZeroReplicas]);
      }
    }
  }
}

TEST(Groups, ArenasEqualThePlanner) {
  for (const auto& [ranks, group] : {std::pair<int, int>{4, 2}, {6, 3}, {3, 1}}) {
    for (int stage = 1; stage <= 3; ++stage) {
      onRanks(ranks, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, groupedOptions(stage, group, 150, 2), unevenShape());
        const uint64_t states = plannedArenas(trainer.engine(), stage).modelStates;
        pealZeroPlanInput_t input = defaultPlanInput();
        input.parameters = trainer.elements();
        input.ranks = group;  // a stage divides by G what it divided by N
        input.rank = rank % group;
        EXPECT_EQ(states, plan(input).stages[stage].modelStates) << stage;
        input.ranks = ranks;
        input.group = group;
        if (stage == 3) {
          EXPECT_EQ(states, plan(input).stages[pealZeroPlanHsdp].modelStates);
        }
      });
    }
  }
}

TEST(Groups, AGradientThatIsNotFiniteStopsTheStepEverywhere) {
  for (int culprit = 0; culprit < 4; ++culprit) {
    onRanks(4, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, groupedOptions(3, 2), unevenShape());
      trainer.tamper = [&](size_t p, int, uint16_t* gradient) {
        if (rank == culprit && p == 8) {
          gradient[150] = 0x7f80;
        }
      };
      EXPECT_EQ(trainer.step().skipped, 1);
      trainer.engine().checkReplicas();
      trainer.tamper = {};
      EXPECT_EQ(trainer.step().skipped, 0);
    });
  }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

TEST(Groups, ImpossibleOnesAreRefusedOnAllRanks) {
  const auto create = [](int ranks, const std::function<pealZeroOptions_t(int rank)>& optionsOf) {
    std::vector<std::string> refusals(static_cast<size_t>(ranks));
    onRanks(ranks, [&](int rank, pealComm_t comm) {
      refusals[static_cast<size_t>(rank)] = refusal([&] { Engine(comm, optionsOf(rank)); });
    });
    return refusals;
  };
  for (const std::string& sentence : create(4, [](int) { return groupedOptions(3, 3); })) {
    EXPECT_NE(sentence.find("3, which does not divide its 4 ranks"), std::string::npos) << sentence;
  }
  for (const std::string& sentence : create(2, [](int) { return groupedOptions(0, 2); })) {
    EXPECT_NE(sentence.find("stage 0, which shards nothing"), std::string::npos) << sentence;
  }
  for (const std::string& sentence :
       create(4, [](int rank) { return groupedOptions(3, rank == 2 ? 4 : 2); })) {
    EXPECT_NE(sentence.find("different values of shardGroup, from 2 to 4"), std::string::npos) << sentence;
  }
}

// A checkpoint has each element once, whatever the groups are, and loads into others.
TEST(Groups, CheckpointsLoadIntoOtherGroups) {
  const std::string folder = testing::TempDir() + "peal-groups-checkpoint";
  std::filesystem::remove_all(folder);
  const auto state = [](Trainer& trainer) {
    std::vector<float> all;
    for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2, pealZeroWeight}) {
      const std::vector<float> values = trainer.read(tensor);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  std::vector<float> saved;
  onRanks(4, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, groupedOptions(3, 2), shapeWithFrozen());
    trainer.step();
    trainer.engine().save(folder);
    const std::vector<float> own = state(trainer);
    if (rank == 0) {
      saved = own;
    }
  });
  for (const auto& [ranks, group] : {std::pair<int, int>{4, 0}, {4, 1}, {6, 3}, {3, 0}}) {
    onRanks(ranks, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, groupedOptions(2, group), shapeWithFrozen());
      trainer.engine().load(folder);
      EXPECT_EQ(state(trainer), saved) << ranks << " ranks in groups of " << group;
      trainer.engine().checkReplicas();
    });
  }
  std::filesystem::remove_all(folder);
}

TEST(Replicas, OneThatDiffersIsNamedOnAllRanks) {
  for (const auto& [stage, group] : {std::pair<int, int>{0, 0}, {1, 0}, {2, 2}}) {
    onRanks(4, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, groupedOptions(stage, group), unevenShape());
      trainer.step();
      trainer.engine().checkReplicas();
      if (rank == 2) {
        trainer.engine().enter(2, pealZeroForward);
        const_cast<uint16_t*>(trainer.engine().weights(5))[128] ^= 1;  // as faulty memory would
        trainer.engine().leave(2, pealZeroForward);
      }
      const std::string sentence = refusal([&] { trainer.engine().checkReplicas(); });
      EXPECT_NE(sentence.find("the weights differ: ranks 0, 1, 3 hold "), std::string::npos) << sentence;
      EXPECT_NE(sentence.find("; 2 hold "), std::string::npos) << sentence;
      EXPECT_EQ(sentence.find("optimizer"), std::string::npos) << sentence;
      EXPECT_EQ(trainer.step().skipped, 0);  // it can still be used
    });
  }
}

}  // namespace
}  // namespace peal::zero::test

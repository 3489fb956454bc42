// Parameters of both weight types in one engine: each has the bits that it has in an engine of its type
// alone, at every stage, and the bytes of its type's formulas.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/zero/arenas.h"
#include "tests/zero/before.h"
#include "tests/zero/breadth.h"
#include "tests/zero/checkpoint_support.h"

namespace peal::zero::test {
namespace {

constexpr int kNoType = -1;

// Both types in most units, one of fp32 alone, frozen ones of each, a second name of an fp32 one.
Shape mixedShape() {
  Shape shape = unevenShape();
  for (const size_t wide : {1, 3, 4, 7, 8, 10}) {
    shape[wide].dtype = pealFloat32;
  }
  shape[5].dtype = pealBfloat16;
  shape.push_back({9, 4, pealZeroDecay, 0, true, -1, pealFloat32});
  shape.push_back({6, 4, pealZeroDecay, 0, true, -1, pealBfloat16});
  shape.push_back({5, 0, pealZeroDecay, 0, false, 1});
  return shape;
}

Shape ofOneType(Shape shape) {
  for (ModelParameter& parameter : shape) {
    parameter.dtype = kNoType;
  }
  return shape;
}

pealZeroOptions_t mixedOptions(int stage, size_t bucketBytes = 100) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.bucketBytes = bucketBytes;
  options.weightDecay = 0.1;
  return options;
}

struct MixedWay {
  Shape shape = mixedShape();
  std::vector<int> kept = {};
  std::vector<size_t> order = {};
  bool announces = false;
  bool waits = false;  // after each gradient for all that is queued
};

struct MixedRun {
  std::vector<std::vector<float>> values;  // as stateOf()
  std::vector<double> norms;
  uint64_t fused = 0, buckets = 0;  // of all steps
  std::string reason;
  bool operator==(const MixedRun& other) const {
    return sameBits(values, other.values) && norms == other.norms;
  }
};

MixedRun trainMixed(int ranks, const pealZeroOptions_t& options, const MixedWay& way = {}) {
  std::vector<MixedRun> runs(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, way.shape, way.kept);
    trainer.order = way.order;
    trainer.announces = way.announces;
    if (way.waits) {
      trainer.handedOver = [&](size_t) { finishQueued(trainer.engine().handle()); };
    }
    MixedRun& run = runs[static_cast<size_t>(rank)];
    for (int step = 0; step < 3; ++step) {
      const pealZeroReport_t report = trainer.step();
      run.norms.push_back(report.gradientNorm);
      run.fused += report.fusedBuckets;
      run.buckets += trainer.engine().fusedStatus().buckets;
      trainer.engine().checkReplicas();
    }
    run.reason = trainer.engine().fusedStatus().reason;
    run.values = stateOf(trainer);
  });
  for (const MixedRun& run : runs) {
    EXPECT_TRUE(run == runs[0]) << "ranks hold other values";
  }
  return runs[0];
}

// The values of the trained parameters of a type, of one run's master, moment1, moment2 or weights.
std::vector<float> valuesOf(const std::vector<float>& values, bool isWide,
                            const Shape& shape = mixedShape()) {
  std::vector<float> found;
  size_t at = 0;
  for (const ModelParameter& parameter : shape) {
    if (!parameter.trains()) {
      continue;
    }
    for (uint64_t i = 0; i < parameter.elements; ++i, ++at) {
      if ((parameter.dtype == pealFloat32) == isWide) {
        found.push_back(values[at]);
      }
    }
  }
  return found;
}

TEST(Types, SameBitsWhateverTheStageTheBucketAndTheOverlap) {
  for (const int ranks : rankCounts({1, 2, 3, 4, 5})) {
    for (const int microBatches : {1, 2}) {
      if (microBatches > 1 && ranks > 3) {
        continue;
      }
      const auto options = [&](int stage, size_t bucketBytes) {
        pealZeroOptions_t made = mixedOptions(stage, bucketBytes);
        made.clipNorm = 0.5;
        made.microBatches = microBatches;
        made.reduceEachMicroBatch = 1;
        return made;
      };
      const MixedRun expected = trainMixed(ranks, options(0, 1 << 20));
      for (int stage = 0; stage <= 3; ++stage) {
        for (const int group : {0, 2}) {
          if (group > 0 && (stage == 0 || ranks != 4)) {
            continue;
          }
          for (const size_t bucketBytes : {size_t{2}, size_t{100}, size_t{1} << 20}) {
            for (const bool overlaps : {false, true}) {
              pealZeroOptions_t each = options(stage, bucketBytes);
              each.shardGroup = group;
              each.prefetchDepth = overlaps ? 1 : 0;
              each.bucketSlots = overlaps ? 0 : 2;
              MixedWay way;
              way.kept = overlaps ? std::vector<int>{2} : std::vector<int>{};
              way.waits = !overlaps;
              EXPECT_TRUE(trainMixed(ranks, each, way) == expected)
                  << ranks << " ranks in groups of " << group << ", stage " << stage << ", buckets of "
                  << bucketBytes << " bytes, " << microBatches << " micro-batches, overlap " << overlaps;
            }
          }
        }
      }
    }
  }
}

// Without clipping no parameter depends on others.
TEST(Types, HaveTheBitsOfEnginesOfOneType) {
  for (int stage = 0; stage <= 3; ++stage) {
    pealZeroOptions_t options = mixedOptions(stage);
    options.reduceType = pealZeroReduceFp32;
    MixedWay narrow;
    narrow.shape = ofOneType(mixedShape());
    pealZeroOptions_t wideOptions = options;
    wideOptions.master = pealZeroMasterIsWeight;
    const MixedRun mixed = trainMixed(3, options);
    const MixedRun allNarrow = trainMixed(3, options, narrow);
    const MixedRun allWide = trainMixed(3, wideOptions, narrow);
    for (size_t tensor = 0; tensor < 4; ++tensor) {
      EXPECT_EQ(valuesOf(mixed.values[tensor], false), valuesOf(allNarrow.values[tensor], false)) << stage;
      EXPECT_EQ(valuesOf(mixed.values[tensor], true), valuesOf(allWide.values[tensor], true)) << stage;
      EXPECT_NE(valuesOf(mixed.values[tensor], true), valuesOf(allNarrow.values[tensor], true)) << stage;
    }
    EXPECT_EQ(valuesOf(mixed.values[0], true), valuesOf(mixed.values[3], true))
        << "weights are their masters";
    // The other way round: bf16 as the exception.
    MixedWay exceptions;
    for (ModelParameter& parameter : exceptions.shape) {
      const bool isWide = parameter.dtype == pealFloat32;
      parameter.dtype = isWide ? kNoType : pealBfloat16;
    }
    EXPECT_TRUE(trainMixed(3, wideOptions, exceptions) == mixed) << stage;
  }
}

// fp32 parameters have neither remainders nor random rounding.
TEST(Types, OnlyBf16IsRoundedAndSplit) {
  for (const bool splits : {false, true}) {
    for (int stage = 0; stage <= 3; ++stage) {
      pealZeroOptions_t options = mixedOptions(stage);
      const MixedRun plain = trainMixed(2, options);
      options.master = splits ? pealZeroMasterRemainder : pealZeroMasterFp32;
      options.stochasticRounding = splits ? 0 : 1;
      options.seed = 7;
      MixedWay narrow;
      narrow.shape = ofOneType(mixedShape());
      const MixedRun mixed = trainMixed(2, options);
      const MixedRun alone = trainMixed(2, options, narrow);
      for (size_t tensor = 0; tensor < 4; ++tensor) {
        EXPECT_EQ(valuesOf(mixed.values[tensor], false), valuesOf(alone.values[tensor], false)) << stage;
        EXPECT_EQ(valuesOf(mixed.values[tensor], true), valuesOf(plain.values[tensor], true)) << stage;
      }
    }
  }
}

// With bf16 gradients the room through which state moves has 16 bits for each element that a rank owns, and
// fp32 weights have 32.
TEST(Types, RebuiltBucketsChangeNoBits) {
  for (const int ranks : rankCounts({2, 3, 5})) {
    for (int stage = 0; stage <= 2; ++stage) {
      for (const bool splits : {false, true}) {
        pealZeroOptions_t options = mixedOptions(stage, 150);
        options.bucketSlots = 20;
        options.master = splits ? pealZeroMasterRemainder : pealZeroMasterFp32;
        options.rebuildBuckets = 0;
        MixedWay way;
        way.order = {0, 1, 2, 3, 4, 8, 9, 10, 5, 6, 7};
        const MixedRun expected = trainMixed(ranks, options, way);
        options.rebuildBuckets = 1;
        EXPECT_TRUE(trainMixed(ranks, options, way) == expected) << ranks << " ranks, stage " << stage;
      }
    }
  }
}

TEST(Types, BucketsOfBf16AreFused) {
  for (const int ranks : rankCounts({1, 2, 4, 5})) {
    for (const int stage : {1, 2}) {
      for (const size_t bucketBytes : {size_t{2}, size_t{100}, size_t{1} << 20}) {
        pealZeroOptions_t options = mixedOptions(stage, bucketBytes);
        options.skipNonFinite = 0;
        MixedWay announced;
        announced.announces = true;
        const MixedRun fused = trainMixed(ranks, options, announced);
        EXPECT_TRUE(fused == trainMixed(ranks, options)) << ranks << " " << stage << " " << bucketBytes;
        EXPECT_GT(fused.fused, 0u);
        EXPECT_LT(fused.fused, fused.buckets);
        if (stage == 1) {
          EXPECT_CONTAINS(fused.reason, "buckets have fp32 weights, and only bf16 is fused");
        }
      }
    }
  }
}

pealZeroPlanStage_t planOfType(Engine& engine, bool isWide, int masterBytes, int stage, int rank, int ranks) {
  pealZeroPlanInput_t input = defaultPlanInput();
  input.weightBytes = isWide ? 4 : 2;
  input.optimizerBytes = isWide ? 8 : 8 + masterBytes;
  input.ranks = ranks;
  input.rank = rank;
  int count = 0;
  pealZeroParameterCount(engine.handle(), &count);
  for (int id = 0; id < count; ++id) {
    pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
    uint64_t elements = 0;
    pealZeroParameterInfo(engine.handle(), id, &parameter, &elements);
    if (parameter.tiedTo == nullptr && (parameter.dtype == pealFloat32) == isWide) {
      (parameter.frozen != 0 ? input.frozenParameters : input.parameters) += elements;
    }
  }
  return plan(input).stages[stage];
}

// Each type is planned by itself, and bytes add up: of memory, and of what is sent.
TEST(Types, TakeTheBytesOfTheirFormulas) {
  for (const bool splits : {false, true}) {
    for (int stage = 0; stage <= 3; ++stage) {
      constexpr int kRanks = 3;
      std::atomic<uint64_t> gathered{0}, reduced{0};
      std::array<double, 2> planned{};
      onRanks(kRanks, [&](int rank, pealComm_t comm) {
        pealZeroOptions_t options = mixedOptions(stage);
        options.master = splits ? pealZeroMasterRemainder : pealZeroMasterFp32;
        Trainer trainer(comm, rank, options, mixedShape());
        const Arenas arenas = plannedArenas(trainer.engine(), stage);
        const int masterBytes = splits ? 2 : 4;
        const pealZeroPlanStage_t narrow =
            planOfType(trainer.engine(), false, masterBytes, stage, rank, kRanks);
        const pealZeroPlanStage_t wide = planOfType(trainer.engine(), true, masterBytes, stage, rank, kRanks);
        EXPECT_EQ(arenas.modelStates, narrow.modelStates + wide.modelStates);
        EXPECT_EQ(arenas.bytes.at("weights"), narrow.weights + wide.weights);
        EXPECT_EQ(
            arenas.bytes.at(splits ? "remainders" : "master"),
            narrow.optimizer / (8 + static_cast<uint64_t>(masterBytes)) * static_cast<uint64_t>(masterBytes));
        trainer.step();
        if (rank == 0) {
          planned = {narrow.gatherBytesSent + wide.gatherBytesSent,
                     narrow.reduceBytesSent + wide.reduceBytesSent};
        }
        const pealZeroCounters_t counters = trainer.engine().counters();
        gathered += counters.bytesSent[pealZeroAllGather];
        reduced += counters.bytesSent[pealZeroReduceScatter] + counters.bytesSent[pealZeroAllReduce];
      });
      EXPECT_NEAR(static_cast<double>(gathered), kRanks * planned[0], 1e-6) << stage;
      EXPECT_NEAR(static_cast<double>(reduced), kRanks * planned[1], 1e-6) << stage;
    }
  }
}

// ---- checkpoints ----------------------------------------------------------------------------------------

TEST(Types, CheckpointsGoOnAtAnyStageOnAnyNumberOfRanks) {
  for (const bool rounds : {false, true}) {
    const auto options = [&](int stage) {
      pealZeroOptions_t made = mixedOptions(stage);
      made.stochasticRounding = rounds ? 1 : 0;
      return made;
    };
    const CheckpointDirectory directory;
    std::vector<std::vector<float>> saved, continued;
    onRanks(2, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, options(1), mixedShape());
      trainer.step();
      trainer.step();
      trainer.engine().save(directory / "a");
      const auto state = stateOf(trainer);
      trainer.step();
      const auto then = stateOf(trainer);
      if (rank == 0) {
        saved = state;
        continued = then;
      }
    });
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int ranks : {1, 2, 3}) {
        onRanks(ranks, [&](int rank, pealComm_t comm) {
          Trainer trainer(comm, rank, options(stage), mixedShape());
          trainer.engine().load(directory / "a");
          EXPECT_TRUE(sameBits(stateOf(trainer), saved)) << stage << " " << ranks;
          trainer.engine().checkReplicas();
          if (ranks == 2) {
            trainer.continueAfter(2);
            trainer.step();
            EXPECT_TRUE(sameBits(stateOf(trainer), continued)) << stage;
          }
        });
      }
    }
    const Checkpoint checkpoint(directory / "a");
    EXPECT_EQ(checkpoint.info().weightBytes, 0);
    EXPECT_EQ(checkpoint.info().hasWeights, rounds ? 1 : 0);
    EXPECT_EQ(checkpoint.parameter(0).weightBytes, 2);
    EXPECT_EQ(checkpoint.parameter(1).weightBytes, 4);
    EXPECT_EQ(checkpoint.parameter(11).weightBytes, 2) << "frozen weights are stored in bf16";
    EXPECT_EQ(checkpoint.parameter(13).weightBytes, 4) << "its other name's";
    std::vector<float> weights(5), masters(5);
    checkpoint.read(1, pealZeroWeight, 0, weights);
    checkpoint.read(1, pealZeroMaster, 0, masters);
    EXPECT_EQ(weights, masters);
    EXPECT_TRUE(std::equal(weights.begin(), weights.end(), saved[3].begin() + 37));
  }
}

TEST(Types, AnotherTypeOfOneParameterIsRefusedOrConverted) {
  const CheckpointDirectory directory;
  Shape other = mixedShape();
  other[5].dtype = pealFloat32;
  other[8].dtype = pealBfloat16;
  std::vector<float> masters;
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, mixedOptions(1), mixedShape());
    trainer.step();
    trainer.engine().save(directory / "a");
    const std::vector<float> mine = trainer.read(pealZeroMaster);
    if (rank == 0) {
      masters = mine;
    }
  });
  for (int stage = 0; stage <= 3; ++stage) {
    onRanks(3, [&](int rank, pealComm_t comm) {
      pealZeroOptions_t options = mixedOptions(stage);
      Trainer strict(comm, rank, options, other);
      const std::string refusal = failureOf(pealInvalidUsage, [&] { strict.engine().load(directory / "a"); });
      EXPECT_CONTAINS(refusal, "parameter \"p5\" of ");
      EXPECT_CONTAINS(refusal, "was saved with bf16 weights and the engine's are fp32");
      options.convertWeights = 1;
      Trainer trainer(comm, rank, options, other);
      trainer.engine().load(directory / "a");
      EXPECT_EQ(trainer.read(pealZeroMaster), masters);
      const std::vector<float> weights = trainer.read(pealZeroWeight);
      std::vector<float> trained(weights.begin(), weights.begin() + static_cast<long>(masters.size()));
      EXPECT_EQ(valuesOf(trained, true, other), valuesOf(masters, true, other));
    });
  }
}

// ---- registration ---------------------------------------------------------------------------------------

TEST(Types, AreCheckedAndTold) {
  onRanks(2, [](int rank, pealComm_t comm) {
    Engine engine(comm, defaultOptions());
    const auto add = [&](const char* name, int dtype) {
      pealZeroParameter_t parameter = parameterOf(name, {3}, 0);
      parameter.dtype = dtype;
      return engine.addParameter(parameter);
    };
    EXPECT_CONTAINS(failureOf(pealInvalidArgument, [&] { add("half", pealFloat16); }),
                    "its dtype is 6 (half); weights are pealBfloat16 (9) or pealFloat32 (7), and -1 is the "
                    "engine's type");
    EXPECT_CONTAINS(failureOf(pealInvalidArgument, [&] { add("none", 99); }), "its dtype is 99; weights");
    const float values[3] = {1.0f + 0x1p-20f, 2, 3};
    const int narrow = add("narrow", -1), wide = add("wide", pealFloat32);
    engine.setInitial(narrow, values);
    engine.setInitial(wide, values);
    engine.seal();
    pealZeroParameter_t told = PEAL_ZERO_PARAMETER_INITIALIZER;
    pealZeroParameterInfo(engine.handle(), narrow, &told, nullptr);
    EXPECT_EQ(told.dtype, pealBfloat16);
    pealZeroParameterInfo(engine.handle(), wide, &told, nullptr);
    EXPECT_EQ(told.dtype, pealFloat32);
    engine.enter(0, pealZeroForward);
    EXPECT_EQ(engine.weightsFp32(wide)[0], values[0]);
    EXPECT_EQ(widen(engine.weights(narrow)[0]), 1.0f);
    EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { engine.weights(wide); }),
                    "the weights of parameter 1 (\"wide\") are fp32: call pealZeroWeightsFp32");
    EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { engine.weightsFp32(narrow); }),
                    "the weights of parameter 0 (\"narrow\") are bf16: call pealZeroWeights");
    engine.leave(0, pealZeroForward);

    Engine differing(comm, defaultOptions());
    pealZeroParameter_t parameter = parameterOf("w", {3}, 0);
    parameter.dtype = rank == 1 ? pealFloat32 : pealBfloat16;
    differing.setInitial(differing.addParameter(parameter), values);
    EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { differing.seal(); }), "registered other parameters");
  });
}

}  // namespace
}  // namespace peal::zero::test

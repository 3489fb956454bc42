// peal-train's switches for the engine: how masters are kept, how weights are rounded, what decays, which
// units stay, how many buffers there are. Each is seen in what the run leaves: bits, bytes, elements sent.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "peal/zero.hpp"
#include "tests/train/run_fixture.h"

namespace peal::train {
namespace {

// By the names of the parameters.
using Masters = std::map<std::string, std::vector<float>>;

class EngineChoicesTest : public RunTest {
 protected:
  static Arguments with(Arguments arguments, const Arguments& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // The masters of a checkpoint that the run saved.
  Masters mastersAfter(const Arguments& arguments) {
    train(with(arguments, {"--save", file("saved"), "--overwrite"}));
    const zero::Checkpoint checkpoint(file("saved"));
    Masters masters;
    for (uint64_t i = 0; i < checkpoint.info().parameters; ++i) {
      const pealZeroCheckpointParameter_t parameter = checkpoint.parameter(i);
      std::vector<float>& values = masters[parameter.name];
      values.resize(parameter.elements);
      checkpoint.read(i, pealZeroMaster, 0, values);
    }
    return masters;
  }

  static uint64_t arenaBytes(const json& end, const std::string& name) {
    for (const json& arena : end.at("memory")) {
      if (arena.at("name") == name) {
        return arena.at("bytes");
      }
    }
    return 0;
  }
};

bool isEmbedding(const std::string& name) { return name.starts_with("embedding."); }
bool isMatrix(const std::string& name) { return isEmbedding(name) || name.ends_with(".weight"); }

TEST_F(EngineChoicesTest, remaindersTakeTwoBytesLessAtEveryStage) {
  json expected;
  for (const char* stage : {"0", "1", "2", "3"}) {
    SCOPED_TRACE(stage);
    const Arguments common = {"--ranks", "2", "--steps", "3", "--stage", stage};
    const std::vector<json> fp32 = train(common);
    const std::vector<json> events = train(with(common, {"--master", "remainder"}));
    const json &end = events.back(), &fp32End = fp32.back();
    expected = expected.is_null() ? bits(events) : expected;
    EXPECT_EQ(bits(events), expected);
    EXPECT_EQ(arenaBytes(end, "master"), 0u);
    EXPECT_EQ(2 * arenaBytes(end, "remainders"), arenaBytes(fp32End, "master"));
    EXPECT_EQ(fp32End.at("modelStateBytes").get<uint64_t>() - end.at("modelStateBytes").get<uint64_t>(),
              arenaBytes(end, "remainders"));
    EXPECT_EQ(end.at("modelStateBytes"), end.at("modelStateFormulaBytes"));
  }
}

// The same gradients give the same masters, whatever becomes of the weights.
TEST_F(EngineChoicesTest, oneStepGivesTheSameMastersHoweverWeightsAreRounded) {
  const Arguments common = {"--ranks", "3", "--steps", "1"};
  const json nearest = train(common).back();
  const json remainder = train(with(common, {"--master", "remainder"})).back();
  const json stochastic = train(with(common, {"--stochastic-rounding"})).back();
  EXPECT_EQ(remainder.at("masters"), nearest.at("masters"));
  EXPECT_EQ(stochastic.at("masters"), nearest.at("masters"));
  EXPECT_NE(stochastic.at("weights"), nearest.at("weights"));
}

TEST_F(EngineChoicesTest, stochasticRoundingIsTheSameAtEveryStage) {
  json expected;
  for (const char* stage : {"0", "1", "2", "3"}) {
    const json got = bits(train({"--ranks", "3", "--steps", "4", "--stage", stage, "--stochastic-rounding"}));
    expected = expected.is_null() ? got : expected;
    EXPECT_EQ(got, expected) << "stage " << stage;
  }
}

TEST_F(EngineChoicesTest, resumedRunsAreTheSameBits) {
  for (const Arguments& choice : {Arguments{"--stochastic-rounding"}, Arguments{"--master", "remainder"}}) {
    SCOPED_TRACE(choice[0]);
    const Arguments common = with({"--ranks", "2", "--lr", "0.003", "--min-lr", "0.003"}, choice);
    const json whole = train(with(common, {"--steps", "6"})).back();
    const json saved = train(with(common, {"--steps", "3", "--save", file("saved"), "--overwrite"})).back();
    const json rest = train(with(common, {"--steps", "6", "--stage", "3", "--resume", file("saved")})).back();
    EXPECT_EQ(rest.at("weights"), whole.at("weights"));
    EXPECT_EQ(rest.at("masters"), whole.at("masters"));
    // And a run that keeps fp32 masters can go on from either.
    const json other = train({"--ranks", "2", "--steps", "3", "--resume", file("saved")}).back();
    EXPECT_EQ(other.at("weights"), saved.at("weights"));
    EXPECT_EQ(other.at("masters"), saved.at("masters"));
  }
}

// w becomes (1 - lr * decay) w before the update, which does not depend on the decay. Gains and biases never
// decay.
TEST_F(EngineChoicesTest, decayIsThatOfTheParametersGroup) {
  const double rate = 0.01, decay = 0.5;
  const Arguments common = {"--ranks", "2",        "--steps", "1",        "--lr",
                            "0.01",    "--min-lr", "0.01",    "--warmup", "0"};
  const Masters first = mastersAfter({"--ranks", "2", "--steps", "0"});
  const Masters none = mastersAfter(with(common, {"--weight-decay", "0"}));
  const Masters all = mastersAfter(with(common, {"--weight-decay", "0.5"}));
  const Masters blocks = mastersAfter(with(common, {"--weight-decay", "0.5", "--embedding-decay", "0"}));
  const Masters embeddings = mastersAfter(with(common, {"--weight-decay", "0", "--embedding-decay", "0.5"}));
  const auto expectDecayed = [&](const Masters& masters, const std::string& name, bool decays) {
    for (size_t i = 0; i < first.at(name).size(); ++i) {
      const double lost = decays ? rate * decay * first.at(name)[i] : 0;
      ASSERT_NEAR(masters.at(name)[i], none.at(name)[i] - lost, decays ? 1e-8 : 0) << name << " " << i;
    }
  };
  ASSERT_EQ(first.size(), 16u);
  for (const auto& [name, values] : first) {
    SCOPED_TRACE(name);
    expectDecayed(all, name, isMatrix(name));
    expectDecayed(blocks, name, isMatrix(name) && !isEmbedding(name));
    expectDecayed(embeddings, name, isEmbedding(name));
  }
}

TEST_F(EngineChoicesTest, embeddingsHaveALearningRateOfTheirOwn) {
  const Masters first = mastersAfter({"--ranks", "2", "--steps", "0"});
  const Masters fixed = mastersAfter({"--ranks", "2", "--steps", "3", "--embedding-lr", "0"});
  for (const auto& [name, values] : first) {
    EXPECT_EQ(fixed.at(name) == values, isEmbedding(name)) << name;
  }
}

TEST_F(EngineChoicesTest, epsilonReachesTheOptimizer) {
  // The first step moves by lr * g / (|g| + epsilon), and every |g| is below 1: its norm is clipped to 1.
  const Arguments common = {"--ranks", "1", "--steps", "1", "--weight-decay", "0"};
  const Masters first = mastersAfter({"--ranks", "1", "--steps", "0"});
  const Masters usual = mastersAfter(common), damped = mastersAfter(with(common, {"--epsilon", "1"}));
  const auto moved = [&](const Masters& masters) {
    double sum = 0;
    for (const auto& [name, values] : masters) {
      for (size_t i = 0; i < values.size(); ++i) {
        sum += std::abs(static_cast<double>(values[i]) - first.at(name)[i]);
      }
    }
    return sum;
  };
  EXPECT_GT(moved(damped), 0);
  EXPECT_LT(moved(damped), moved(usual) / 10);
}

TEST_F(EngineChoicesTest, unitsThatStaySendTwoThirdsOfStageThree) {
  const Arguments common = {"--ranks",      "3", "--steps",  "3", "--stage",      "3",
                            "--accumulate", "2", "--layers", "3", "--eval-every", "2"};
  const std::vector<json> usual = train(common), kept = train(with(common, {"--no-reshard"}));
  EXPECT_EQ(bits(kept), bits(usual));
  EXPECT_EQ(kept.back().at("elementsSent"), kept.back().at("elementsSentFormula"));
  EXPECT_EQ(3 * kept.back().at("elementsSent").get<uint64_t>(),
            2 * usual.back().at("elementsSent").get<uint64_t>());
  EXPECT_GT(arenaBytes(kept.back(), "unit buffers"), arenaBytes(usual.back(), "unit buffers"));
}

TEST_F(EngineChoicesTest, buffersAndPrefetchDoNotChangeTheBits) {
  const Arguments common = {"--ranks", "2", "--steps", "3", "--layers", "4", "--bucket-bytes", "2000"};
  for (const char* stage : {"2", "3"}) {
    SCOPED_TRACE(stage);
    const std::vector<json> usual = train(with(common, {"--stage", stage}));
    const std::vector<json> wide =
        train(with(common, {"--stage", stage, "--bucket-slots", "4", "--unit-slots", "5"}));
    const std::vector<json> late = train(with(common, {"--stage", stage, "--prefetch", "0"}));
    EXPECT_EQ(bits(wide), bits(usual));
    EXPECT_EQ(bits(late), bits(usual));
    const auto ratio = [&](const char* arena) {
      return static_cast<double>(arenaBytes(wide.back(), arena)) /
             static_cast<double>(arenaBytes(usual.back(), arena));
    };
    EXPECT_DOUBLE_EQ(ratio("gradient buffers"), stage[0] == '2' ? 4.0 / 2 : 4.0 / 3);
    if (stage[0] == '3') {
      EXPECT_DOUBLE_EQ(ratio("unit buffers"), 5.0 / 3);
    }
  }
}

TEST_F(EngineChoicesTest, gatheringFurtherAheadTakesBuffersAndGivesTheSameBits) {
  const Arguments common = {"--ranks", "2", "--steps", "3", "--layers", "5", "--stage", "3"};
  const std::vector<json> usual = train(common);
  const std::vector<json> far = train(with(common, {"--prefetch", "3", "--gathers-in-flight", "2"}));
  EXPECT_EQ(bits(far), bits(usual));
  EXPECT_EQ(3 * arenaBytes(far.back(), "unit buffers"), 5 * arenaBytes(usual.back(), "unit buffers"));
}

// Fused where nothing needs the whole gradient first: the same bits and bytes; and a sentence where not.
TEST_F(EngineChoicesTest, fusedStepsAreTheSameBits) {
  const Arguments common = {"--ranks", "2", "--steps", "3", "--bucket-bytes", "4000", "--accumulate", "2"};
  for (const char* stage : {"1", "2"}) {
    SCOPED_TRACE(stage);
    const std::vector<json> clipped = train(with(common, {"--stage", stage, "--no-skip"}));
    EXPECT_EQ(clipped.back().at("fusedBuckets"), 0);
    EXPECT_EQ(clipped.back().at("fusedReason").get<std::string>().find("clipNorm is 1"), 0u);
    const std::vector<json> usual = train(with(common, {"--stage", stage, "--clip", "0"}));
    EXPECT_EQ(usual.back().at("fusedBuckets"), 0);
    EXPECT_EQ(usual.back().at("fusedReason").get<std::string>().find("skipNonFinite is 1"), 0u);
    const std::vector<json> fused =
        train(with(common, {"--stage", stage, "--clip", "0", "--no-skip", "--recompute"}));
    EXPECT_GT(fused.back().at("fusedBuckets"), 0);
    EXPECT_EQ(bits(fused), bits(usual));
    EXPECT_EQ(fused.back().at("elementsSent"), fused.back().at("elementsSentFormula"));
  }
}

TEST_F(EngineChoicesTest, fp32GradientsAreTwiceTheBytesAndOtherBits) {
  const Arguments common = {"--ranks", "3", "--steps", "3", "--accumulate", "2"};
  json expected;
  for (const char* stage : {"0", "1", "2", "3"}) {
    SCOPED_TRACE(stage);
    const std::vector<json> bf16 = train(with(common, {"--stage", stage}));
    const std::vector<json> fp32 = train(with(common, {"--stage", stage, "--reduce", "fp32"}));
    expected = expected.is_null() ? bits(fp32) : expected;
    EXPECT_EQ(bits(fp32), expected);
    EXPECT_NE(bits(fp32), bits(bf16));
    EXPECT_EQ(arenaBytes(fp32.back(), "gradients"), 2 * arenaBytes(bf16.back(), "gradients"));
    EXPECT_EQ(fp32.back().at("modelStateBytes"), fp32.back().at("modelStateFormulaBytes"));
    EXPECT_NEAR(fp32.back().at("heldOutLoss"), bf16.back().at("heldOutLoss"), 1e-2);
  }
}

TEST_F(EngineChoicesTest, replicasAreComparedEverySoManyStepsAndAfterALoad) {
  const Arguments common = {"--ranks", "2", "--stage", "1", "--check-replicas", "2"};
  EXPECT_EQ(train(with(common, {"--steps", "5", "--save", file("saved")})).back().at("replicaChecks"), 2);
  EXPECT_EQ(train(with(common, {"--steps", "7", "--resume", file("saved")})).back().at("replicaChecks"), 2);
  EXPECT_EQ(train({"--ranks", "2", "--steps", "3", "--check-replicas", "0"}).back().at("replicaChecks"), 0);
}

}  // namespace
}  // namespace peal::train

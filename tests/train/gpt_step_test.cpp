// Whole training steps of a tiny GPT against PyTorch: loss, every gradient, norm, clipping, AdamW's moments
// and masters. gpt-fixture.json is make-gpt-fixture.py's, in fp64. First the model by itself in fp32, then
// the model with the engine at every stage, on ranks with uneven numbers of tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/train/local_parameters.h"
#include "tests/zero/ranks.h"
#include "tools/train/engine_parameters.h"
#include "tools/train/model.h"

namespace peal::train {
namespace {

using nlohmann::json;

// docs/ZERO-ENGINE.md's tolerances, of PyTorch's own tests.
constexpr double kFp32Relative = 1.3e-6, kBf16Relative = 1.6e-2, kAbsolute = 1e-5;
constexpr double kFp32Loss = 1e-5, kBf16Loss = 1e-2;

const json& fixture() {
  static const json contents = json::parse(std::ifstream(PEAL_GPT_FIXTURE));
  return contents;
}

ModelShape fixtureShape() {
  const json& f = fixture();
  return {f.at("layers"), f.at("width"), f.at("heads"), f.at("context"), f.at("vocabulary")};
}

// The formula of make-gpt-fixture.py.
void firstWeights(const ParameterSpec& spec, size_t index, float* values) {
  for (size_t i = 0; i < spec.count(); ++i) {
    values[i] = (static_cast<float>((i * i * 7 + i * 37 + index * 101 + 11) % 61) - 30) / 128 +
                (spec.name.ends_with("gain") ? 1.0f : 0.0f);
  }
}

// The symbols of sequences [begin, end) of a step.
std::vector<uint32_t> symbols(const char* which, size_t step, size_t begin, size_t end) {
  std::vector<uint32_t> all;
  for (size_t s = begin; s < end; ++s) {
    for (const json& symbol : fixture().at(which).at(step).at(s)) {
      all.push_back(symbol);
    }
  }
  return all;
}

TEST(GptStep, lossAndGradientsArePyTorchs) {
  const ModelShape shape = fixtureShape();
  const size_t sequences = fixture().at("sequences");
  Model model(shape, sequences);
  ASSERT_EQ(model.specs().size(), fixture().at("parameters").size());
  LocalParameters access(model.specs());
  for (size_t p = 0; p < model.specs().size(); ++p) {
    firstWeights(model.specs()[p], p, access.values[p].data());
  }
  const auto inputs = symbols("inputs", 0, 0, sequences), targets = symbols("targets", 0, 0, sequences);
  const double loss = model.loss(access, inputs.data(), targets.data(), sequences, shape.context);
  const double expected = fixture().at("losses").at(0);
  EXPECT_NEAR(loss, expected, kFp32Loss * expected);
  model.backward(access);
  for (size_t p = 0; p < model.specs().size(); ++p) {
    const json& parameter = fixture().at("parameters").at(p);
    ASSERT_EQ(model.specs()[p].name, parameter.at("name"));
    const std::vector<double> gradient = parameter.at("gradient");
    ASSERT_EQ(access.gradients[p].size(), gradient.size());
    for (size_t i = 0; i < gradient.size(); ++i) {
      EXPECT_NEAR(access.gradients[p][i], gradient[i], kFp32Relative * std::abs(gradient[i]) + kAbsolute)
          << model.specs()[p].name << "[" << i << "]";
    }
  }
}

// Who computes what of the fixture's three sequences.
struct Run {
  int stage, ranks, shardGroup;
  size_t microBatches;
  pealZeroReduceType_t reduceType = pealZeroReduceBf16;
  pealZeroMasterFormat_t master = pealZeroMasterFp32;
};

std::ostream& operator<<(std::ostream& out, const Run& run) {
  return out << "stage " << run.stage << ", " << run.ranks << " ranks, groups of " << run.shardGroup << ", "
             << run.microBatches << " micro-batches"
             << (run.reduceType == pealZeroReduceFp32 ? ", fp32 gradients" : "")
             << (run.master == pealZeroMasterIsWeight ? ", fp32 weights" : "");
}

pealZeroOptions_t engineOptionsOf(const Run& run) {
  const json& f = fixture();
  pealZeroOptions_t options = zero::defaultOptions();
  options.stage = run.stage;
  options.shardGroup = run.shardGroup;
  options.microBatches = static_cast<int>(run.microBatches);
  options.bucketBytes = 200;
  options.reduceType = run.reduceType;
  options.master = run.master;
  options.clipNorm = f.at("clip");
  options.beta1 = f.at("beta1");
  options.beta2 = f.at("beta2");
  options.epsilon = f.at("epsilon");
  options.weightDecay = f.at("decay");
  return options;
}

// Sequences [begin, end) of a rank's micro-batch: all 3 on one rank, 2 and 1 on two, 1, 1, 1 and none on
// four.
std::pair<size_t, size_t> part(const Run& run, int rank, size_t microBatch) {
  const size_t all = fixture().at("sequences"), parts = static_cast<size_t>(run.ranks) * run.microBatches;
  const size_t index = microBatch * static_cast<size_t>(run.ranks) + static_cast<size_t>(rank);
  const size_t each = (all + parts - 1) / parts;
  return {std::min(index * each, all), std::min((index + 1) * each, all)};
}

using Values = std::vector<std::vector<float>>;  // by parameter

// Collective: the values of a tensor, by parameter.
Values readAll(zero::Engine& engine, const std::vector<ParameterSpec>& specs, pealZeroTensor_t tensor) {
  Values all;
  for (size_t p = 0; p < specs.size(); ++p) {
    engine.read(static_cast<int>(p), tensor, all.emplace_back(specs[p].count()).data());
  }
  return all;
}

// transformed: what is done to both values before they are compared.
using Transformation = double (*)(double value, double firstWeight);

struct Tolerance {
  double relative;
  bool toLargest;  // to the parameter's largest value, not to each
};

// A gradient that is a sum of several roundings to bf16 is as exact as its largest part, not as itself.
Tolerance toleranceOf(const Run& run) {
  if (run.reduceType == pealZeroReduceFp32) {
    return {kFp32Relative, false};
  }
  return {kBf16Relative, static_cast<size_t>(run.ranks) * run.microBatches > 1};
}

void expectNear(const Values& got, const char* which, const Values& first, Transformation transformed,
                const Tolerance& tolerance) {
  for (size_t p = 0; p < got.size(); ++p) {
    const json& parameter = fixture().at("parameters").at(p);
    std::vector<double> expected = parameter.at(which);
    ASSERT_EQ(got[p].size(), expected.size());
    double largest = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = transformed(expected[i], first[p][i]);
      largest = std::max(largest, std::abs(expected[i]));
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      const double size = tolerance.toLargest ? largest : std::abs(expected[i]);
      EXPECT_NEAR(transformed(got[p][i], first[p][i]), expected[i], tolerance.relative * size + kAbsolute)
          << which << " of " << parameter.at("name") << "[" << i << "]";
    }
  }
}

// What a run gave after each step: the sum of the ranks' losses, the norm, and what rank 0 read.
struct Outcome {
  std::vector<std::vector<double>> losses;  // by rank
  std::vector<pealZeroReport_t> reports;
  std::vector<Values> masters, moments1, moments2;
};

// Weights of either type.
class Weights final : public EngineParameters {
 public:
  Weights(zero::Engine& engine, const Run& run, const Model& model, Tracer& tracer)
      : EngineParameters(engine, model.specs(), run.reduceType, unitCount(model.shape()), tracer),
        engine_(engine),
        specs_(model.specs()),
        areFp32_(run.master == pealZeroMasterIsWeight) {}
  void read(size_t parameter, float* values) override {
    if (areFp32_) {
      std::copy_n(engine_.weightsFp32(static_cast<int>(parameter)), specs_[parameter].count(), values);
    } else {
      EngineParameters::read(parameter, values);
    }
  }

 private:
  zero::Engine& engine_;
  const std::vector<ParameterSpec>& specs_;
  const bool areFp32_;
};

// One rank's part of a step: the summed loss and the number of tokens.
std::pair<double, uint64_t> passes(const Run& run, int rank, size_t step, Model& model,
                                   EngineParameters& access, zero::Engine& engine) {
  double loss = 0;
  uint64_t tokens = 0;
  for (size_t m = 0; m < run.microBatches; ++m) {
    const auto [begin, end] = part(run, rank, m);
    const auto inputs = symbols("inputs", step, begin, end), targets = symbols("targets", step, begin, end);
    loss += model.loss(access, inputs.data(), targets.data(), end - begin, model.shape().context);
    tokens += inputs.size();
    model.backward(access);
    engine.endMicroBatch();
  }
  return {loss, tokens};
}

Outcome trainOnRanks(const Run& run) {
  Outcome outcome;
  outcome.losses.resize(static_cast<size_t>(run.ranks));
  zero::test::onRanks(run.ranks, [&](int rank, pealComm_t comm) {
    const TrainOptions noTrace;
    const tools::RankContext context{.rank = rank, .size = run.ranks, .comm = comm};
    Tracer tracer(noTrace, context);
    zero::Engine engine(comm, engineOptionsOf(run));
    Model model(fixtureShape(), fixture().at("sequences"));
    Weights access(engine, run, model, tracer);
    registerParameters(engine, model.specs(), {.firstValues = firstWeights}, rank);
    for (size_t step = 0; step < fixture().at("rates").size(); ++step) {
      const auto [loss, tokens] = passes(run, rank, step, model, access, engine);
      const pealZeroReport_t report = engine.step(fixture().at("rates").at(step), tokens);
      outcome.losses[static_cast<size_t>(rank)].push_back(loss);
      auto masters = readAll(engine, model.specs(), pealZeroMaster);
      auto moments1 = readAll(engine, model.specs(), pealZeroMoment1);
      auto moments2 = readAll(engine, model.specs(), pealZeroMoment2);
      if (rank == 0) {
        outcome.reports.push_back(report);
        outcome.masters.push_back(std::move(masters));
        outcome.moments1.push_back(std::move(moments1));
        outcome.moments2.push_back(std::move(moments2));
      }
    }
  });
  return outcome;
}

// With weights that are never rounded, every step's loss is PyTorch's, at any stage.
TEST(GptStep, lossesOfFp32WeightsArePyTorchs) {
  for (const int stage : {0, 2, 3}) {
    const Outcome outcome = trainOnRanks({stage, 2, 0, 1, pealZeroReduceFp32, pealZeroMasterIsWeight});
    const std::vector<double> expected = fixture().at("plainLosses");
    ASSERT_EQ(outcome.reports.size(), expected.size());
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(outcome.losses[0][step] + outcome.losses[1][step], expected[step],
                  kFp32Loss * expected[step])
          << "stage " << stage << ", step " << step;
    }
  }
}

class GptStepTest : public testing::TestWithParam<Run> {};

TEST_P(GptStepTest, isPyTorchs) {
  const json& f = fixture();
  const Outcome outcome = trainOnRanks(GetParam());
  ASSERT_EQ(outcome.reports.size(), f.at("losses").size());
  for (size_t step = 0; step < outcome.reports.size(); ++step) {
    SCOPED_TRACE(step);
    double loss = 0;
    for (const std::vector<double>& ofRank : outcome.losses) {
      loss += ofRank[step];
    }
    const double expected = f.at("losses")[step], plain = f.at("plainLosses")[step],
                 norm = f.at("norms")[step];
    EXPECT_NEAR(loss, expected, (step == 0 ? kFp32Loss : kBf16Loss) * expected);
    EXPECT_NEAR(loss, plain, kBf16Loss * plain);
    EXPECT_NEAR(outcome.reports[step].gradientNorm, norm, kBf16Relative * norm);
    EXPECT_EQ(outcome.reports[step].tokens,
              f.at("sequences").get<uint64_t>() * f.at("context").get<uint64_t>());
  }
  const std::vector<ParameterSpec> specs = parameterSpecs(fixtureShape());
  Values first;
  for (size_t p = 0; p < specs.size(); ++p) {
    firstWeights(specs[p], p, first.emplace_back(specs[p].count()).data());
  }
  const Tolerance tolerance = toleranceOf(GetParam());
  const Transformation asItIs = [](double value, double) { return value; };
  const Transformation root = [](double value, double) {
    return std::sqrt(value);
  };  // as large as a gradient
  const Transformation change = [](double value, double firstWeight) { return value - firstWeight; };
  expectNear(outcome.moments1[1], "moment1After2", first, asItIs, tolerance);
  expectNear(outcome.moments2[1], "moment2After2", first, root, tolerance);
  expectNear(outcome.masters[0], "mastersAfter1", first, change, tolerance);
  expectNear(outcome.masters[1], "mastersAfter2", first, change, tolerance);
}

INSTANTIATE_TEST_SUITE_P(runs, GptStepTest,
                         testing::Values(Run{0, 1, 0, 1}, Run{1, 1, 0, 1}, Run{2, 1, 0, 1}, Run{3, 1, 0, 1},
                                         Run{0, 2, 0, 1}, Run{1, 2, 0, 1}, Run{2, 2, 0, 1}, Run{3, 2, 0, 1},
                                         Run{2, 1, 0, 3}, Run{0, 2, 0, 2}, Run{3, 2, 0, 2}, Run{1, 4, 2, 1},
                                         Run{3, 4, 2, 1}, Run{0, 1, 0, 1, pealZeroReduceFp32},
                                         Run{2, 2, 0, 1, pealZeroReduceFp32},
                                         Run{3, 2, 0, 2, pealZeroReduceFp32},
                                         Run{3, 4, 2, 1, pealZeroReduceFp32}));

}  // namespace
}  // namespace peal::train

// The model's loss, logits and every gradient against the reference model and its finite differences.
#include "tools/train/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/train/local_parameters.h"
#include "tests/train/reference_model.h"

namespace peal::train {
namespace {

struct Case {
  ModelShape shape;
  size_t sequences, length;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.shape.layers << " layers, width " << c.shape.width << ", heads " << c.shape.heads
             << ", context " << c.shape.context << ", " << c.sequences << " sequences of " << c.length;
}

class ModelTest : public testing::TestWithParam<Case> {
 protected:
  ModelTest() : shape_(GetParam().shape), model_(shape_, GetParam().sequences), access_(model_.specs()) {
    access_.randomize(5);
    for (size_t i = 0; i < GetParam().sequences * GetParam().length; ++i) {
      inputs_.push_back(static_cast<uint32_t>(mix(1, 2, i) % shape_.vocabulary));
      targets_.push_back(static_cast<uint32_t>(mix(1, 3, i) % shape_.vocabulary));
    }
  }
  double loss() {
    return model_.loss(access_, inputs_.data(), targets_.data(), GetParam().sequences, GetParam().length);
  }

  ModelShape shape_;
  Model model_;
  LocalParameters access_;
  std::vector<uint32_t> inputs_, targets_;
};

TEST_P(ModelTest, lossIsTheReferences) {
  const ReferenceModel reference(shape_, access_.values);
  const double expected = reference.loss(inputs_, targets_, GetParam().length);
  EXPECT_NEAR(loss(), expected, 1e-5 * expected);
  EXPECT_TRUE(access_.noneOpen());
}

TEST_P(ModelTest, predictionIsTheReferences) {
  const ReferenceModel reference(shape_, access_.values);
  for (size_t length = 1; length <= shape_.context; length += 3) {
    std::vector<uint32_t> inputs;
    for (size_t i = 0; i < length; ++i) {
      inputs.push_back(static_cast<uint32_t>(mix(7, length, i) % shape_.vocabulary));
    }
    const auto expected = reference.sequenceLogits(inputs.data(), length).back();
    const float* logits = model_.predict(access_, inputs.data(), length);
    for (size_t i = 0; i < shape_.vocabulary; ++i) {
      EXPECT_NEAR(logits[i], expected[i], 2e-5 * (1 + std::abs(expected[i]))) << length << " " << i;
    }
  }
}

TEST_P(ModelTest, gradientsAreTheFiniteDifferencesOfTheReference) {
  loss();
  model_.backward(access_);
  ReferenceModel reference(shape_, access_.values);
  const double step = 1e-4;
  for (size_t p = 0; p < model_.specs().size(); ++p) {
    const ParameterSpec& spec = model_.specs()[p];
    const std::vector<float>& gradient = access_.gradients[p];
    ASSERT_EQ(gradient.size(), spec.count()) << spec.name;
    double scale = 0;
    for (float value : gradient) {
      scale = std::max(scale, std::abs(static_cast<double>(value)));
    }
    // All of a small parameter, a sample of a large one.
    const size_t checks = std::min<size_t>(spec.count(), 20);
    for (size_t i = 0; i < checks; ++i) {
      const size_t at = checks == spec.count() ? i : mix(11, p, i) % spec.count();
      double& value = reference.parameters[p][at];
      const double before = value;
      value = before + step;
      const double above = reference.loss(inputs_, targets_, GetParam().length);
      value = before - step;
      const double below = reference.loss(inputs_, targets_, GetParam().length);
      value = before;
      EXPECT_NEAR(gradient[at], (above - below) / (2 * step), 2e-5 * (1 + scale))
          << spec.name << "[" << at << "]";
    }
  }
}

TEST_P(ModelTest, sizesAreAsForetold) {
  EXPECT_EQ(static_cast<double>(model_.workspaceBytes()), workspaceBytesFor(shape_, GetParam().sequences));
  size_t count = 0;
  for (const ParameterSpec& spec : model_.specs()) {
    count += spec.count();
  }
  EXPECT_EQ(static_cast<double>(count), parametersOf(shape_));
}

TEST_P(ModelTest, secondBackwardIsTheSameBits) {
  loss();
  model_.backward(access_);
  const auto first = access_.gradients;
  access_.forgetGradients();
  loss();
  model_.backward(access_);
  EXPECT_EQ(first, access_.gradients);
}

// A rank may have none in a micro-batch that others need.
TEST_P(ModelTest, noSequencesGiveZeros) {
  loss();
  EXPECT_EQ(model_.loss(access_, inputs_.data(), targets_.data(), 0, GetParam().length), 0);
  model_.backward(access_);
  for (size_t p = 0; p < model_.specs().size(); ++p) {
    EXPECT_EQ(access_.gradients[p], std::vector<float>(model_.specs()[p].count())) << model_.specs()[p].name;
  }
}

TEST_P(ModelTest, recomputingIsTheSameBitsInLessMemory) {
  const double expected = loss();
  model_.backward(access_);
  const auto gradients = access_.gradients;
  access_.forgetGradients();
  Model thrifty(shape_, GetParam().sequences, Activations::Recomputed);
  EXPECT_EQ(thrifty.loss(access_, inputs_.data(), targets_.data(), GetParam().sequences, GetParam().length),
            expected);
  thrifty.backward(access_);
  EXPECT_EQ(access_.gradients, gradients);
  EXPECT_EQ(static_cast<double>(thrifty.workspaceBytes()),
            workspaceBytesFor(shape_, GetParam().sequences, Activations::Recomputed));
  if (shape_.layers > 1) {
    EXPECT_LT(thrifty.workspaceBytes(), model_.workspaceBytes());
  }
}

INSTANTIATE_TEST_SUITE_P(shapes, ModelTest,
                         testing::Values(Case{{2, 24, 3, 9, 11}, 2, 9},
                                         Case{{2, 24, 3, 9, 11}, 3, 4},    // part of the context
                                         Case{{1, 16, 1, 40, 63}, 1, 40},  // more than one row block
                                         Case{{1, 8, 8, 5, 3}, 2, 5},      // heads of width 1
                                         Case{{3, 33, 3, 33, 17}, 1, 33}, Case{{1, 4, 2, 1, 2}, 1, 1}));

// All of them, to the tolerances of PyTorch's own tests of fp32 (docs/ZERO-ENGINE.md) and to no other
// yardstick than each value itself. The file is make-difference-fixture.py's: numpy, fp64, exact to about
// 1e-9.
TEST(ModelDifferences, gradientsAreNumpys) {
  constexpr double relative = 1.3e-6, absolute = 1e-5;
  const nlohmann::json f = nlohmann::json::parse(std::ifstream(PEAL_DIFFERENCE_FIXTURE));
  const ModelShape shape{f.at("layers"), f.at("width"), f.at("heads"), f.at("context"), f.at("vocabulary")};
  const size_t sequences = f.at("sequences");
  const std::vector<uint32_t> inputs = f.at("inputs"), targets = f.at("targets");
  Model model(shape, sequences);
  LocalParameters access(model.specs());
  ASSERT_EQ(f.at("parameters").size(), model.specs().size());
  for (size_t p = 0; p < model.specs().size(); ++p) {
    const nlohmann::json& parameter = f.at("parameters").at(p);
    ASSERT_EQ(parameter.at("name"), model.specs()[p].name);
    const std::vector<float> parts = parameter.at("values");
    ASSERT_EQ(parts.size(), model.specs()[p].count());
    for (size_t i = 0; i < parts.size(); ++i) {
      access.values[p][i] = parts[i] / f.at("parts").get<float>();
    }
  }
  const double loss = model.loss(access, inputs.data(), targets.data(), sequences, shape.context);
  EXPECT_NEAR(loss, f.at("loss"), relative * loss + absolute);
  model.backward(access);
  for (size_t p = 0; p < model.specs().size(); ++p) {
    const std::vector<double> expected = f.at("parameters").at(p).at("gradient");
    ASSERT_EQ(access.gradients[p].size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(access.gradients[p][i], expected[i], relative * std::abs(expected[i]) + absolute)
          << model.specs()[p].name << "[" << i << "]";
    }
  }
}

// What the engine relies on at stage 3, and for its buckets.
TEST(ModelUnits, ordersAreForwardAndBackward) {
  const ModelShape shape{2, 8, 2, 4, 5};
  Model model(shape, 1);
  LocalParameters access(model.specs());
  access.randomize(1);
  const uint32_t tokens[] = {0, 1, 2, 3};
  model.loss(access, tokens, tokens, 1, 4);
  using Event = LocalParameters::Event;
  std::vector<Event> expected;
  for (size_t unit = 0; unit < unitCount(shape); ++unit) {
    expected.push_back(Event{unit, Pass::Forward, true});
    expected.push_back(Event{unit, Pass::Forward, false});
  }
  EXPECT_EQ(access.events, expected);
  access.events.clear();
  model.backward(access);
  expected = {Event{0, Pass::Backward, true}};
  for (size_t unit = unitCount(shape) - 1; unit > 0; --unit) {
    expected.push_back(Event{unit, Pass::Backward, true});
    expected.push_back(Event{unit, Pass::Backward, false});
  }
  expected.push_back(Event{0, Pass::Backward, false});
  EXPECT_EQ(access.events, expected);
  // Every parameter once, units in falling order, embeddings last.
  ASSERT_EQ(access.order.size(), model.specs().size());
  for (size_t i = 1; i < access.order.size(); ++i) {
    EXPECT_LE(model.specs()[access.order[i]].unit, model.specs()[access.order[i - 1]].unit);
  }
}

TEST(Parameters, unitsAreContiguousAndNamesUnique) {
  const ModelShape shape{3, 16, 2, 8, 10};
  const auto specs = parameterSpecs(shape);
  EXPECT_EQ(specs.size(), 2 + 3 * kBlockParameters + 2);
  EXPECT_EQ(specs.back().unit + 1, unitCount(shape));
  EXPECT_EQ(specs[finalNormBias(shape)].name, "norm.bias");
  EXPECT_EQ(specs[blockParameter(2, QkvWeight)].name, "blocks.2.attention.qkv.weight");
  std::vector<std::string> names;
  for (size_t i = 0; i < specs.size(); ++i) {
    names.push_back(specs[i].name);
    EXPECT_TRUE(i == 0 || specs[i].unit == specs[i - 1].unit || specs[i].unit == specs[i - 1].unit + 1);
    EXPECT_EQ(specs[i].decays, specs[i].columns > 1) << specs[i].name;
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(Parameters, initialValuesHaveTheirDeviation) {
  const ParameterSpec spec{"x", 200, 100, true, 0, 0.02, 0};
  std::vector<float> values(spec.count()), again(spec.count());
  initialValues(spec, 3, 7, values.data());
  initialValues(spec, 3, 7, again.data());
  EXPECT_EQ(values, again);
  initialValues(spec, 4, 7, again.data());
  EXPECT_NE(values, again);
  double sum = 0, squares = 0;
  for (float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const double count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 5 * 0.02 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.02 * 5 / std::sqrt(2 * count));
}

}  // namespace
}  // namespace peal::train

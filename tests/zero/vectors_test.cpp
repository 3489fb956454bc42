// zero-vectors.json, every case by its id, against the planner and the engine. A case without a handler
// fails, and so does a handler without a case. Numbers hold to half a unit of the last digit that the case
// prints.
//
// Cases that state a formula as text are compared as text first, so that a changed formula is noticed, and
// then evaluated over a grid of numbers.
#include "tests/zero/vectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

namespace peal::zero::test {
void expectPrinted(double actual, const json& printed) {
  const std::string text = printed.dump();
  const size_t point = text.find('.');
  const auto decimals = point == std::string::npos ? 0 : static_cast<int>(text.size() - point - 1);
  const double value = printed.get<double>();
  EXPECT_NEAR(actual, value, 0.5000001 * std::pow(10.0, -decimals) + 1e-12 * std::abs(value));
}

pealZeroPlanInput_t inputOf(double parameters, int64_t ranks) {
  pealZeroPlanInput_t input = defaultPlanInput();
  input.parameters = static_cast<uint64_t>(parameters);
  input.ranks = ranks;
  return input;
}

pealZeroPlanInput_t inputOf(const json& inputs) {
  return inputOf(inputs.at("P").get<double>(), inputs.value("N", int64_t{1}));
}

void forEachRanks(const std::function<void(double N)>& body) {
  for (const int64_t ranks : {1, 2, 3, 4, 8, 11}) {
    SCOPED_TRACE(ranks);
    body(static_cast<double>(ranks));
  }
}

namespace {

const Handlers& handlers() {
  static const Handlers all = [] {
    Handlers merged = memoryHandlers();
    merged.merge(communicationHandlers());
    merged.merge(overlapHandlers());
    merged.merge(numberHandlers());
    return merged;
  }();
  return all;
}

json readVectors() {
  std::ifstream file(PEAL_ZERO_TEST_DATA "/zero-vectors.json");
  return file.is_open() ? json::parse(file) : json::array();
}

class Vectors : public testing::TestWithParam<std::string> {};

TEST_P(Vectors, Holds) {
  for (const json& test : readVectors()) {
    if (test.at("id") == GetParam()) {
      SCOPED_TRACE(test.dump());
      handlers().at(GetParam())(test);
      return;
    }
  }
  FAIL() << "zero-vectors.json has no case " << GetParam();
}

std::vector<std::string> handledIds() {
  std::vector<std::string> ids;
  for (const auto& [id, handler] : handlers()) {
    ids.push_back(id);
  }
  return ids;
}

INSTANTIATE_TEST_SUITE_P(All, Vectors, testing::ValuesIn(handledIds()),
                         [](const auto& test) { return test.param; });

TEST(VectorFile, EveryCaseHasItsHandler) {
  const json vectors = readVectors();
  EXPECT_EQ(vectors.size(), 43u);
  for (const json& test : vectors) {
    EXPECT_TRUE(handlers().contains(test.at("id"))) << test.dump();
  }
}

}  // namespace
}  // namespace peal::zero::test

// The order of rounds and stages.
#include "algorithms/pipeline.h"

#include <gtest/gtest.h>

#include <string>

namespace peal::test {
namespace {

std::string orderOf(size_t rounds, int stages, int ahead) {
  std::string order;
  runStages(rounds, stages, ahead, [&](int stage, size_t round) {
    order += static_cast<char>('A' + stage);
    order += std::to_string(round);
  });
  return order;
}

TEST(Pipeline, RunsRoundsWholeWithoutAhead) {
  EXPECT_EQ(orderOf(0, 2, 0), "");
  EXPECT_EQ(orderOf(3, 1, 0), "A0A1A2");
  EXPECT_EQ(orderOf(3, 1, 2), "A0A1A2");
  EXPECT_EQ(orderOf(2, 3, 0), "A0B0C0A1B1C1");
}

TEST(Pipeline, RunsEarlierStagesAheadAndEveryStageOnce) {
  EXPECT_EQ(orderOf(3, 2, 1), "A0A1B0A2B1B2");
  EXPECT_EQ(orderOf(1, 3, 1), "A0B0C0");
  EXPECT_EQ(orderOf(3, 3, 1), "A0A1B0A2B1C0B2C1C2");
  EXPECT_EQ(orderOf(2, 2, 3), "A0A1B0B1");
}

}  // namespace
}  // namespace peal::test

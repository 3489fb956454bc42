// Deadlines: when they pass, and what is left for poll().
#include "lib/base/clock.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace {

using peal::Deadline;

TEST(Deadline, IsAheadUntilItPasses) {
  const Deadline deadline = Deadline::afterMs(60000);
  EXPECT_FALSE(deadline.passed());
  EXPECT_GT(deadline.leftMs(), 50000);
  EXPECT_LE(deadline.leftMs(), 60000);
}

TEST(Deadline, HasNothingLeftOncePassed) {
  for (const int64_t ms : {int64_t{0}, int64_t{-5000}}) {
    const Deadline deadline = Deadline::afterMs(ms);
    EXPECT_TRUE(deadline.passed());
    EXPECT_EQ(deadline.leftMs(), 0);
  }
}

TEST(Deadline, FitsPollHoweverFarItIs) {
  const Deadline deadline = Deadline::afterMs(int64_t{INT32_MAX} * 1000);
  EXPECT_EQ(deadline.leftMs(), INT32_MAX);
  EXPECT_FALSE(deadline.passed());
}

}  // namespace

// What the thread sanitizer cannot follow: fences, and runs that end before their threads do.
#include "tests/cudasim/ptx_test/zoo_launch.h"

namespace peal::cudasim {
namespace {

TEST_F(PtxZooCounters, StrongAccessesCarryDataFromBlockToBlock) {
  for (int64_t seed = 0; seed < 8; ++seed) {
    options().random = seed != 0;
    options().weak = seed % 2;
    options().seed = seed;
    clear();
    const RunResult result = launch(kBlocks, kThreads, [&] { zoo::strong(counters_); });
    ASSERT_TRUE(result.ok()) << result.text;
    uint64_t expected = 0;
    for (uint32_t b = 0; b < kBlocks; ++b) {
      expected = expected * 3 + b;
    }
    EXPECT_EQ(longs()[0], expected);
  }
}

TEST_F(PtxZooCounters, AnAcquireThatNvccHoistsOutOfItsLoopNeverEnds) {
  options().timeoutMs = 300;
  RunResult result = launch(2, 1, [&] { zoo::waitRight(counters_); });
  EXPECT_TRUE(result.ok()) << result.text;
  EXPECT_EQ(words()[1], 42u);
  clear();
  result = launch(2, 1, [&] { zoo::waitHoisted(counters_); });
  EXPECT_TRUE(result.kind == TrapKind::Deadlock || result.kind == TrapKind::NoProgress) << result.text;
  EXPECT_NE(result.text.find("block 0"), std::string::npos) << result.text;
  EXPECT_EQ(words()[1], 0u);
}

TEST_F(PtxZooCounters, AWaitThatNobodyEndsIsADeadlockAtOnce) {
  const RunResult result = launch(1, 1, [&] { zoo::waitRight(counters_); });
  EXPECT_EQ(result.kind, TrapKind::Deadlock) << result.text;
}

TEST_F(PtxZooCounters, WhatIsWrongIsATrap) {
  setExported(words_.base());
  float onHost = 0;
  counters_.sums = &onHost;
  counters_.threads = 1;
  const std::pair<zoo::Wrong, TrapKind> kCases[] = {
      {zoo::Wrong::NarrowScope, TrapKind::Scope},     {zoo::Wrong::NonCoherent, TrapKind::NonCoherent},
      {zoo::Wrong::Misaligned, TrapKind::Misaligned}, {zoo::Wrong::Trap, TrapKind::Halt},
      {zoo::Wrong::HostMemory, TrapKind::HostMemory}, {zoo::Wrong::SharedBounds, TrapKind::OutOfBounds},
      {zoo::Wrong::Nothing, TrapKind::None}};
  for (const auto& [what, kind] : kCases) {
    const RunResult result = launch(1, 1, [&] { zoo::wrong(counters_, what); });
    EXPECT_EQ(result.kind, kind) << static_cast<int>(what) << ": " << result.text;
  }
  EXPECT_EQ(longs()[3], 1u);
  EXPECT_EQ(onHost, 0);
}

}  // namespace
}  // namespace peal::cudasim

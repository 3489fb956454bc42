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

}  // namespace
}  // namespace peal::cudasim

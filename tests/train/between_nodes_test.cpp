// Whole runs whose ranks reach each other by a network: the bits of shared memory, at every stage, fused or
// not. Two nodes are pretended on this machine.
#include "tests/train/run_fixture.h"

namespace peal::train {
namespace {

class BetweenNodesTest : public RunTest {
 protected:
  // Rank 0's events.
  std::vector<json> launch(const Arguments& more) {
    const std::string root = "PEAL_ROOT=127.0.0.1:" + std::to_string(20000 + getpid() % 20000);
    Arguments arguments = commandLine(kTiny, more);
    arguments.insert(arguments.end(), {"--metrics", file("metrics")});
    Command rank0(arguments, {"PEAL_RANK=0", "PEAL_SIZE=2", "PEAL_HOST_ID=a", root});
    Command rank1(arguments, {"PEAL_RANK=1", "PEAL_SIZE=2", "PEAL_HOST_ID=b", root});
    for (Command* rank : {&rank0, &rank1}) {
      const CommandResult result = rank->wait();
      EXPECT_EQ(result.exitCode, 0) << result.output;
    }
    return metrics();
  }
};

TEST_F(BetweenNodesTest, runsHaveTheBitsOfSharedMemory) {
  const Arguments common = {"--steps", "3", "--bucket-bytes", "4000", "--clip", "0", "--no-skip"};
  json expected;
  for (const char* stage : {"0", "1", "2", "3"}) {
    SCOPED_TRACE(stage);
    Arguments arguments = common;
    arguments.insert(arguments.end(), {"--stage", stage});
    if (expected.is_null()) {
      Arguments local = arguments;
      local.insert(local.end(), {"--ranks", "2"});
      expected = bits(train(local));
    }
    const std::vector<json> events = launch(arguments);
    EXPECT_EQ(bits(events), expected);
    const bool fuses = stage[0] == '1' || stage[0] == '2';
    EXPECT_EQ(events.back().at("fusedBuckets") > 0, fuses);
  }
}

}  // namespace
}  // namespace peal::train

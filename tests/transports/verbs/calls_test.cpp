// Every call of libibverbs that can fail does so in turn, in a rank that opens its devices, connects, sleeps,
// exchanges messages and leaves: no crash, no leak, no silence.
#include <gtest/gtest.h>

#include <ostream>

#include "tests/transports/verbs/machines.h"

namespace peal::test {
namespace {

// What a failing call must lead to.
enum class Then {
  Anything,     // but a crash, a leak or a silence
  NotAsleep,    // it refuses to sleep
  NothingElse,  // it goes on as if nothing had happened
};

struct Call {
  const char* function;
  int calls;   // that are failed one by one: as many as one rank makes for certain
  bool isAll;  // and it makes no more: so that all are failed
  Then then = Then::Anything;
};

std::ostream& operator<<(std::ostream& out, const Call& call) { return out << call.function; }

class VerbsCallFails : public ::testing::TestWithParam<Call> {};
INSTANTIATE_TEST_SUITE_P(
    Calls, VerbsCallFails,
    ::testing::Values(
        Call{"getDeviceList", 1, true}, Call{"openDevice", 2, true}, Call{"queryDevice", 2, true},
        Call{"queryPort", 2, true}, Call{"queryGid", 10, true}, Call{"allocPd", 2, true},
        Call{"regMr", 4, true}, Call{"createCompChannel", 2, true}, Call{"createCq", 2, true},
        Call{"createQp", 4, true}, Call{"modifyQp", 6, true}, Call{"postSend", 14, false},
        Call{"postRecv", 42, false}, Call{"pollCq", 12, false}, Call{"reqNotifyCq", 2, true, Then::NotAsleep},
        Call{"getCqEvent", 2, false, Then::NothingElse}, Call{"deregMr", 4, true, Then::NothingElse},
        Call{"destroyQp", 2, true, Then::NothingElse}, Call{"destroyCq", 2, true, Then::NothingElse},
        Call{"destroyCompChannel", 2, true, Then::NothingElse}, Call{"deallocPd", 2, true, Then::NothingElse},
        Call{"closeDevice", 2, true, Then::NothingElse}),
    [](const auto& row) { return row.param.function; });

// What a rank does. Both ranks return, and no rank waits for one that gave up.
void work(FabricRank& self, Then then, const FakeVerbs& failing) {
  const bool isLame = self.rank == 0;
  if (!self.connected) {
    EXPECT_GT(self.connected.error().message.size(), 30U);
    EXPECT_EQ(then, Then::Anything) << self.connected.error().message;
    return;
  }
  const bool armed = self.fabric->arm();
  EXPECT_FALSE(isLame && then == Then::NotAsleep && failing.hasFailed() && armed);
  if (exchangeStreams(self, 12, 256, 10000)) {
    self.waitUntil([] { return false; }, 5);
    return;
  }
  self.board.abandoned = true;
  EXPECT_EQ(then, Then::Anything);
  ASSERT_TRUE(self.fabric->fault() || !isLame) << "a silence";
}

// The count-th call of rank 0 fails. Whether it made so many.
bool failOne(const Call& call, int count) {
  World world;
  Machines machines(world, 2, {"rxe", "mlx"});
  FakeVerbs& failing = *machines.libraries[0];
  verbs::Options chosen = options(256, 2);
  chosen.queuePairs = 1;
  chosen.pingLimitMs = 300;
  if (call.then != Then::NothingElse) {  // else it is about what comes after
    failing.failOn(call.function, count);
    // No device is left, or one less.
    const Result<void> opened = [&]() -> Result<void> {
      const Result<std::unique_ptr<Fabric>> fabric = verbs::VerbsFabric::open(failing, chosen);
      return fabric ? Result<void>{} : Result<void>(fabric.error());
    }();
    EXPECT_TRUE(opened || (failing.hasFailed() && opened.error().message.size() > 30));
    EXPECT_EQ(world.alive(), 0);
    if (failing.hasFailed()) {
      return true;
    }
  }
  failing.failOn(call.function, count);
  runFabrics(2, machines.open(chosen), [&](FabricRank& self) { work(self, call.then, failing); });
  EXPECT_EQ(world.alive(), world.refused());
  EXPECT_EQ(world.violations(), 0);
  return failing.hasFailed();
}

TEST_P(VerbsCallFails, WithoutACrashALeakOrASilence) {
  const Call call = GetParam();
  for (int count = 1; count <= call.calls; ++count) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, fmt::format("{} {}", call.function, count));
    EXPECT_TRUE(failOne(call, count)) << "this call was not made: nothing failed";
  }
  // A queue pair that a busy machine lets wait too long is made anew, with more calls: not every time.
  bool isAll = !call.isAll;
  for (int attempt = 0; attempt < 5 && !isAll; ++attempt) {
    isAll = !failOne(call, call.calls + 1);
  }
  EXPECT_TRUE(isAll) << call.function << ": there are more calls than are failed here";
}

}  // namespace
}  // namespace peal::test

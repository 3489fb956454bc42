// Stage 3: in which order units are gathered and reduced, how many gatherings are under way, and what becomes
// of a wrong guess.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/support/limits.h"
#include "tests/zero/before.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

constexpr int kUnits = 5;  // of unevenShape; unit 0 is open around the others

pealZeroOptions_t shardedOptions(int depth, int inFlight, int unitSlots = 0) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = 3;
  options.prefetchDepth = depth;
  options.gathersInFlight = inFlight;
  options.unitSlots = unitSlots;
  return options;
}

// Collectives of rank 0 in the order of issue, of one step after the first.
std::vector<pealZeroSpan_t> issued(const pealZeroOptions_t& options) {
  std::vector<pealZeroSpan_t> spans;
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, unevenShape());
    trainer.step();
    std::vector<pealZeroSpan_t> own;
    trainer.engine().setTrace(
        [](void* user, const pealZeroSpan_t* span) {
          if (span->kind == pealZeroSpanCollective) {
            static_cast<std::vector<pealZeroSpan_t>*>(user)->push_back(*span);
          }
        },
        &own);
    trainer.step();
    trainer.engine().setTrace(nullptr, nullptr);
    if (rank == 0) {
      spans = own;
    }
  });
  return spans;
}

// Where a unit's last gathering, and its reduction, stand in the order of issue.
std::ptrdiff_t placeOf(const std::vector<pealZeroSpan_t>& spans, int counter, int unit) {
  for (size_t i = spans.size(); i-- > 0;) {
    if (spans[i].counter == counter && spans[i].index == unit) {
      return static_cast<std::ptrdiff_t>(i);
    }
  }
  ADD_FAILURE() << "no collective " << counter << " of unit " << unit;
  return -1;
}

TEST(Prefetch, BackwardTheNextUnitsAreGatheredBeforeThisOneIsReduced) {
  struct Case {
    int depth, unitSlots, ahead;  // ahead: so many are gathered before the reduction
  };
  // With two buffers the next unit takes that of the unit that was just left.
  for (const Case& c : {Case{0, 0, 0}, {1, 0, 1}, {1, 2, 1}, {2, 0, 2}, {3, 0, 3}, {3, 4, 3}, {3, 3, 2}}) {
    const std::vector<pealZeroSpan_t> spans = issued(shardedOptions(c.depth, 0, c.unitSlots));
    for (int unit = kUnits - 1; unit > 0; --unit) {
      for (int ahead = 1; ahead < unit; ++ahead) {
        EXPECT_EQ(
            placeOf(spans, pealZeroAllGather, unit - ahead) < placeOf(spans, pealZeroReduceScatter, unit),
            ahead <= c.ahead)
            << fmt::format("depth {}, {} buffers, unit {}, {} ahead", c.depth, c.unitSlots, unit, ahead);
      }
    }
  }
}

TEST(Prefetch, GathersEachUnitTwiceWhateverTheDepth) {
  for (const auto& [depth, inFlight] : {std::pair<int, int>{0, 1}, {1, 1}, {2, 1}, {3, 2}, {64, 0}}) {
    const std::vector<pealZeroSpan_t> spans = issued(shardedOptions(depth, inFlight));
    for (int unit = 0; unit < kUnits; ++unit) {
      EXPECT_EQ(std::count_if(spans.begin(), spans.end(),
                              [unit](const pealZeroSpan_t& span) {
                                return span.counter == pealZeroAllGather && span.index == unit;
                              }),
                2)
          << unit << " at depth " << depth;
    }
  }
}

// Lets so many operations of a kind pass.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    // A test that failed does not hang.
    opened_.wait_for(lock, peal::test::kAtOnce, [&] { return arrived_ <= permits_; });
  }
  void open(int more) {
    const std::scoped_lock lock(mutex_);
    permits_ += more;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  int arrived_ = 0, permits_ = 0;
};

// Gatherings end only as the gate lets them, so what was counted at their issue and has not passed is in
// flight.
TEST(Prefetch, NoMoreGathersAreInFlightThanAllowed) {
  for (const auto& [depth, inFlight, expected] :
       {std::array<int, 3>{3, 1, 1}, {3, 2, 2}, {3, 3, 3}, {1, 3, 1}, {2, 0, 2}}) {
    SCOPED_TRACE(fmt::format("depth {}, {} in flight", depth, inFlight));
    onRanks(2, [&, depth = depth, inFlight = inFlight, expected = expected](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, shardedOptions(depth, inFlight), unevenShape());
      Engine& engine = trainer.engine();
      trainer.step();
      Gate gate;
      const Before before(engine.handle(), [&](Kind kind) {
        if (kind == Kind::Gather) {
          gate.pass();
        }
      });
      const uint64_t already = engine.counters().calls[pealZeroAllGather];
      const auto inFlightNow = [&](int passed) {
        return static_cast<int>(engine.counters().calls[pealZeroAllGather] - already) - passed;
      };
      for (const pealZeroPass_t pass : {pealZeroForward, pealZeroBackward}) {
        const int before0 = pass == pealZeroForward ? 0 : kUnits;
        for (int turn = 0; turn < kUnits; ++turn) {
          // Backward: 0, 4, 3, 2, 1. One more gathering may end than units were entered.
          const int unit = pass == pealZeroForward || turn == 0 ? turn : kUnits - turn;
          gate.open(1);
          engine.enter(unit, pass);
          const int passed = before0 + turn + 1;
          const int left = kUnits - 1 - turn;
          EXPECT_EQ(inFlightNow(passed), std::min(expected, left)) << "unit " << unit << ", pass " << pass;
          if (unit != 0) {
            engine.leave(unit, pass);
          }
        }
        engine.leave(0, pass);
      }
      gate.open(1000);
      engine.endMicroBatch();
      engine.step(1e-2, 8);
    });
  }
}

// The peak is what the planner says, whatever the depth: buffers, not gatherings, are memory.
TEST(Prefetch, BuffersEqualThePlanner) {
  for (const int depth : {0, 1, 2, 3, 64}) {
    onRanks(2, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, shardedOptions(depth, 0), unevenShape());
      trainer.step();
      for (const pealZeroArena_t& arena : trainer.engine().memory()) {
        EXPECT_EQ(arena.bytes, arena.plannedBytes) << arena.name;
        if (arena.name == std::string("unit buffers")) {
          // The largest unit of unevenShape has 200 elements.
          EXPECT_EQ(arena.bytes, 2u * 200u * static_cast<uint64_t>(std::min(kUnits, 2 + depth)));
        }
      }
    });
  }
}

// Units in another order than last time: what was gathered for nothing makes room, and the values are right.
TEST(Prefetch, AWrongGuessGivesItsBufferBack) {
  const Shape shape = unevenShape();
  const std::vector<std::vector<int>> orders{
      {1, 2, 3, 4}, {1, 2, 3, 4}, {1, 4, 2, 3}, {4, 3, 2, 1}, {1, 2, 3, 4}};
  for (const auto& [depth, unitSlots] : {std::pair<int, int>{1, 2}, {1, 0}, {3, 3}, {3, 0}}) {
    onRanks(2, [&, depth = depth, unitSlots = unitSlots](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, shardedOptions(depth, 1, unitSlots), shape);
      const std::vector<float> expected = trainer.read(pealZeroWeight);
      for (const std::vector<int>& order : orders) {
        trainer.engine().enter(0, pealZeroForward);
        for (const int unit : order) {
          UnitScope scope(trainer.engine(), unit, pealZeroForward);
          size_t at = 0;
          for (size_t p = 0; p < shape.size(); ++p) {
            for (uint64_t i = 0; i < shape[p].elements; ++i, ++at) {
              if (shape[p].unit == unit) {
                ASSERT_EQ(widen(trainer.engine().weights(static_cast<int>(p))[i]), expected[at]) << p;
              }
            }
          }
          scope.leave();
        }
        trainer.engine().leave(0, pealZeroForward);
      }
    });
  }
}

}  // namespace
}  // namespace peal::zero::test

// The checker itself: small wrong programs of which it must find exactly what is wrong, one for every check;
// and what the player says about staging, buffers in place and references.
#include "algorithms/record/checker.h"

#include <gtest/gtest.h>

#include <set>

namespace peal::test {
using namespace record;

namespace {

constexpr size_t kTotal = 12;
constexpr Chunk kAll{0, kTotal};

Chunk own(const RecordingPort& port) { return Blocks{kTotal, port.size(), nullptr}.block(port.rank()); }
// With two ranks:
int other(const RecordingPort& port) { return 1 - port.rank(); }
Chunk others(const RecordingPort& port) { return Blocks{kTotal, port.size(), nullptr}.block(other(port)); }

using Run = void (*)(RecordingPort& port);

// A program that claims to be `algorithm`, whose promises it must then keep.
template <Run kRun>
void adapted(RecordingPort& port, const RecordedCall&) {
  kRun(port);
}

template <Run kRun>
std::vector<Fault> faultsOf(AlgorithmId algorithm, int ranks, int root, std::span<const PlayOptions> list) {
  const AlgorithmTraits promised = traitsOf(algorithm, ranks);
  const Blocks blocks{kTotal, promised.cut == Cut::Whole ? 1 : ranks, nullptr};
  return check(algorithm, Operation{promised.collective, ranks, root, blocks, kTotal}, adapted<kRun>, list);
}

template <Run kRun>
std::set<std::string> checksOf(AlgorithmId algorithm, int ranks, int root = 0) {
  std::set<std::string> names;
  for (const Fault& fault :
       faultsOf<kRun>(algorithm, ranks, root, plays(traitsOf(algorithm, ranks), ranks, Plays::Full, 1))) {
    names.insert(checkName(fault.check));
  }
  return names;
}

using Names = std::set<std::string>;

// ---- one message of rank 1 to rank 0, which reduces it
// ------------------------------------------------------

void sendsToItself(RecordingPort& port) {
  port.rank() == 1 ? port.send(1, kAll) : port.recvReduceCopy(1, kAll);
}
void sendsBeyondTheEnd(RecordingPort& port) {
  port.rank() == 1 ? port.send(0, {1, kTotal}) : port.recvReduceCopy(1, {1, kTotal});
}
void sendsHalves(RecordingPort& port) {
  for (const Chunk half : {Chunk{0, 6}, Chunk{6, 6}}) {
    port.rank() == 1 ? port.send(0, half) : port.recvReduceCopy(1, half);
  }
}
void expectsHalf(RecordingPort& port) {
  port.rank() == 1 ? port.send(0, kAll) : port.recvReduceCopy(1, {0, 6});
}
void keepsWhereThereIsNoOutput(RecordingPort& port) {
  port.rank() == 1 ? port.copySend(0, kAll) : port.recvReduceCopy(1, kAll);
}
void keepsInsteadOfReducing(RecordingPort& port) {
  port.rank() == 1 ? port.send(0, kAll) : port.recv(1, kAll);
}
void reducesBackwards(RecordingPort& port) {
  port.rank() == 1 ? port.send(0, kAll) : port.recvReduceCopy(1, kAll);
}

TEST(Checker, FindsWhatIsWrongWithOneMessage) {
  EXPECT_EQ(checksOf<sendsToItself>(AlgorithmId::RingReduce, 2), Names{"peer"});
  EXPECT_EQ(checksOf<sendsBeyondTheEnd>(AlgorithmId::RingReduce, 2), Names{"chunk bounds"});
  EXPECT_EQ(checksOf<sendsHalves>(AlgorithmId::RingReduce, 2), Names{"messages"});
  EXPECT_EQ(checksOf<expectsHalf>(AlgorithmId::RingReduce, 2), Names{"chunk mismatch"});
  EXPECT_EQ(checksOf<keepsWhereThereIsNoOutput>(AlgorithmId::RingReduce, 2), Names{"write outside"});
  EXPECT_EQ(checksOf<keepsInsteadOfReducing>(AlgorithmId::RingReduce, 2), Names{"missing"});
  EXPECT_EQ(checksOf<reducesBackwards>(AlgorithmId::RingReduce, 2), Names{});
  EXPECT_EQ(checksOf<reducesBackwards>(AlgorithmId::DirectReduce, 2), Names{"order"});  // promises rank order
}

// ---- two ranks exchange their blocks
// ------------------------------------------------------------------------

void bothReceiveFirst(RecordingPort& port) {
  port.recv(other(port), others(port));
  port.copySend(other(port), own(port));
}
void nobodyReceives(RecordingPort& port) { port.copySend(other(port), own(port)); }
void sendsUnwrittenOutput(RecordingPort& port) {
  port.sendOut(other(port), own(port));
  port.recv(other(port), others(port));
  port.copy(own(port));
}
void copiesBeforeItSends(RecordingPort& port) {
  port.copy(own(port));
  port.send(other(port), own(port));
  port.recv(other(port), others(port));
}
void copiesBeforeItReceives(RecordingPort& port) {
  port.send(other(port), own(port));
  port.copy(own(port));
  port.recv(other(port), others(port));
}
void sendsOutAndKeepsAgain(RecordingPort& port) {
  port.copySend(other(port), own(port));
  port.recv(other(port), others(port));
  port.copy(own(port));
}
void keepsNotItsOwn(RecordingPort& port) {
  port.send(other(port), own(port));
  port.recv(other(port), others(port));
}

TEST(Checker, FindsWhatIsWrongWithAnExchange) {
  constexpr AlgorithmId kGather = AlgorithmId::DirectAllGather;
  EXPECT_EQ(checksOf<bothReceiveFirst>(kGather, 2), Names{"deadlock"});
  EXPECT_EQ(checksOf<nobodyReceives>(kGather, 2), Names{"unreceived"});
  EXPECT_EQ(checksOf<sendsUnwrittenOutput>(kGather, 2), Names{"absent"});
  EXPECT_EQ(checksOf<copiesBeforeItSends>(kGather, 2), Names{"in place"});
  EXPECT_EQ(checksOf<copiesBeforeItReceives>(kGather, 2), Names{"deadlock"});
  EXPECT_EQ(checksOf<sendsOutAndKeepsAgain>(kGather, 2), (Names{"in place", "written twice"}));
  EXPECT_EQ(checksOf<keepsNotItsOwn>(kGather, 2), Names{"missing"});
}

// Two defects that show only in place, the second only with references besides.
TEST(Checker, FindsHazardsOnlyWhereTheyAre) {
  for (const Buffers buffers : {Buffers::Apart, Buffers::InPlace}) {
    for (const Sends sends : {Sends::Bytes, Sends::References}) {
      const PlayOptions options[] = {{.buffers = buffers, .sends = sends}};
      const bool inPlace = buffers == Buffers::InPlace;
      EXPECT_EQ(faultsOf<copiesBeforeItSends>(AlgorithmId::DirectAllGather, 2, 0, options).size(),
                inPlace ? 1u : 0u);
      const bool waits = inPlace && sends == Sends::References;
      EXPECT_EQ(faultsOf<copiesBeforeItReceives>(AlgorithmId::DirectAllGather, 2, 0, options).size(),
                waits ? 1u : 0u);
    }
  }
}

// ---- three ranks reduce
// -------------------------------------------------------------------------------------

void sumsTwice(RecordingPort& port) {  // to root 0: rank 1's input comes back to rank 1
  if (port.rank() == 1) {
    port.send(2, kAll);
    port.recvReduceSend(2, 0, kAll);
  } else if (port.rank() == 2) {
    port.recvReduceSend(1, 1, kAll);
  } else {
    port.recvReduceCopy(1, kAll);
  }
}
void finishesOnTheWay(RecordingPort& port) {  // to root 0
  if (port.rank() == 1) {
    port.send(2, kAll);
  } else if (port.rank() == 2) {
    port.recvReduceCopySend(1, 0, kAll);
  } else {
    port.recvReduceCopy(2, kAll);
  }
}
void goesTheOtherWayRound(RecordingPort& port) {  // to root 0
  if (port.rank() == 2) {
    port.send(1, kAll);
  } else if (port.rank() == 1) {
    port.recvReduceSend(2, 0, kAll);
  } else {
    port.recvReduceCopy(1, kAll);
  }
}
void roundsAtEveryHop(RecordingPort& port) {  // to root 2: rank order, but by way of rank 1
  if (port.rank() == 0) {
    port.send(1, kAll);
  } else if (port.rank() == 1) {
    port.recvReduceSend(0, 2, kAll);
  } else {
    port.recvReduceCopy(1, kAll);
  }
}
void onlyCopies(RecordingPort& port) { port.copy(kAll); }
void finishesACopy(RecordingPort& port) { port.copyFinish(kAll); }

TEST(Checker, FindsWhatIsWrongWithASum) {
  EXPECT_EQ(checksOf<sumsTwice>(AlgorithmId::RingReduce, 3), (Names{"messages", "elements", "duplicate"}));
  EXPECT_EQ(checksOf<finishesOnTheWay>(AlgorithmId::RingReduce, 3), Names{"finish"});
  EXPECT_EQ(checksOf<goesTheOtherWayRound>(AlgorithmId::RingReduce, 3), Names{"order"});
  EXPECT_EQ(checksOf<roundsAtEveryHop>(AlgorithmId::DirectReduce, 3, 2), Names{"roundings"});
  EXPECT_EQ(checksOf<onlyCopies>(AlgorithmId::RingReduce, 1), Names{"finish"});
  EXPECT_EQ(checksOf<finishesACopy>(AlgorithmId::DirectAllGather, 1), Names{"finish"});
}

// ---- right sums, wrong costs
// --------------------------------------------------------------------------------

// Two ranks all-reduce with as many messages and elements as two-shot, but one waits for the other.
void takesTurns(RecordingPort& port) {
  if (port.rank() == 0) {
    port.send(1, others(port));
    port.recv(1, others(port));
    port.recvReduceAll(own(port));
    port.sendOut(1, own(port));
  } else {
    port.recvReduceCopySend(0, 0, own(port));
    port.send(0, others(port));
    port.recv(0, others(port));
  }
}
// Three ranks all-reduce by way of rank 0.
void reducesAtOneRank(RecordingPort& port) {
  if (port.rank() == 0) {
    port.recvReduceAll(kAll);
    port.sendOutAll(kAll);
  } else {
    port.send(0, kAll);
    port.recv(0, kAll);
  }
}

TEST(Checker, FindsCostsThatDifferFromTheFormula) {
  EXPECT_EQ(checksOf<takesTurns>(AlgorithmId::TwoShotAllReduce, 2), Names{"steps"});
  EXPECT_EQ(checksOf<reducesAtOneRank>(AlgorithmId::TwoShotAllReduce, 3), (Names{"messages", "elements"}));
}

// ---- sums of chosen terms

void sumsNothing(RecordingPort& port) {
  port.rank() == 1 ? port.sumSend(0, kAll) : port.recvReduceCopy(1, kAll);
}
void holdsTwice(RecordingPort& port) {
  if (port.rank() == 1) {
    port.holdIn(kAll);
    port.holdIn(kAll);
    port.sumSend(0, kAll);
  } else {
    port.recvReduceCopy(1, kAll);
  }
}
void holdsAnotherChunk(RecordingPort& port) {
  if (port.rank() == 1) {
    port.holdIn({0, 6});
    port.sumSend(0, kAll);
  } else {
    port.recvReduceCopy(1, kAll);
  }
}
void neverSums(RecordingPort& port) {
  if (port.rank() == 1) {
    port.send(0, kAll);
    port.holdIn(kAll);
  } else {
    port.recvReduceCopy(1, kAll);
  }
}
void keepsAPartialSum(RecordingPort& port) {
  if (port.rank() == 1) {
    port.send(0, kAll);
  } else {
    port.hold(1, kAll);
    port.holdIn(kAll);
    port.sumKeep(kAll);
  }
}
// Both ranks put their own input first.
void sumsInTwoOrders(RecordingPort& port) {
  port.send(other(port), kAll);
  port.holdIn(kAll);
  port.hold(other(port), kAll);
  port.sumCopy(kAll);
}
void sendsAPartialSumByReference(RecordingPort& port) {
  port.holdIn(kAll);
  port.sumKeep(kAll);
  port.sendOut(other(port), kAll);
  port.rank() == 0 ? port.holdOut(kAll) : port.hold(other(port), kAll);
  port.rank() == 0 ? port.hold(other(port), kAll) : port.holdOut(kAll);
  port.sumCopy(kAll);
}

TEST(Checker, FindsWhatIsWrongWithTerms) {
  EXPECT_EQ(checksOf<sumsNothing>(AlgorithmId::RingReduce, 2), Names{"terms"});
  EXPECT_EQ(checksOf<holdsTwice>(AlgorithmId::RingReduce, 2), Names{"terms"});
  EXPECT_EQ(checksOf<holdsAnotherChunk>(AlgorithmId::RingReduce, 2), Names{"chunk mismatch"});
  EXPECT_EQ(checksOf<neverSums>(AlgorithmId::RingReduce, 2), Names{"terms"});
  EXPECT_EQ(checksOf<keepsAPartialSum>(AlgorithmId::RingReduce, 2), Names{"finish"});
  EXPECT_EQ(checksOf<sendsAPartialSumByReference>(AlgorithmId::DoublingAllReduce, 2), Names{"in place"});
  const PlayOptions apart[] = {{}};
  const auto faults = faultsOf<sumsInTwoOrders>(AlgorithmId::DoublingAllReduce, 2, 0, apart);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].check, Check::Bits) << faults[0].text;
}

// ---- the player
// ---------------------------------------------------------------------------------------------

// Rank 2 looks at rank 0's messages only after rank 1 has seen both of them.
void needsTwoStagings(RecordingPort& port) {
  if (port.rank() == 0) {
    port.sendAll({0, 6});
    port.sendAll({6, 6});
    port.copy(kAll);
  } else if (port.rank() == 1) {
    port.recv(0, {0, 6});
    port.recv(0, {6, 6});
    port.sendOut(2, {0, 0});
  } else {
    port.recv(1, {0, 0});
    port.recv(0, {0, 6});
    port.recv(0, {6, 6});
  }
}

TEST(Player, SendAllWaitsForStagingAndForASlotOnEveryLink) {
  const Operation operation{CollectiveKind::Broadcast, 3, 0, Blocks{kTotal, 1, nullptr}, kTotal};
  const Program program = recordProgram(operation, adapted<needsTwoStagings>);
  Player player(program);
  EXPECT_FALSE(player.play({.slots = 2, .staging = 2}).has_value());
  // By reference nothing is staged.
  EXPECT_FALSE(player.play({.slots = 2, .staging = 1, .sends = Sends::References}).has_value());
  const auto staging = player.play({.slots = 2, .staging = 1});
  ASSERT_TRUE(staging.has_value());
  EXPECT_EQ(staging->check, Check::Deadlock);
  EXPECT_NE(staging->text.find("waits for staging memory"), std::string::npos) << staging->text;
  const auto slot = player.play({.slots = 1, .staging = 2});
  ASSERT_TRUE(slot.has_value());
  EXPECT_NE(slot->text.find("rank 0 at step 1 sendAll([6,12)) waits for a slot to 2"), std::string::npos)
      << slot->text;
}

TEST(Player, NamesRankStepAndCircumstances) {
  const PlayOptions options[] = {{.slots = 3,
                                  .buffers = Buffers::InPlace,
                                  .sends = Sends::References,
                                  .schedule = Schedule::Starve,
                                  .starved = 1}};
  const auto faults = faultsOf<goesTheOtherWayRound>(AlgorithmId::RingReduce, 3, 0, options);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(
      faults[0].text,
      "ringReduce, 3 ranks, root 0, 12 elements in 1 blocks, chunks of 12: order: rank 0's output [0,12) is "
      "summed from rank 2 to rank 0, not round the ring to rank 0 (in place, references, 3 slots per link, "
      "starving rank 1)");
}

}  // namespace
}  // namespace peal::test

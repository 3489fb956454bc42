// The verifier: a perfect library passes, and each fault that a library could have is found and counted.
#include "bench/harness/verify.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace peal::bench {
namespace {

constexpr int kRanks = 4;
constexpr size_t kShare = 1500;  // elements: more than one chunk of the comparison

const Collective kAllReduce{"all_reduce",
                            true,
                            false,
                            true,
                            [](size_t count, size_t, int) {
                              return Extents{count, count, count, 0, 0};
                            },
                            nullptr,
                            nullptr,
                            [](const Call& call) {
                              return std::vector<Piece>{{Piece::Source::Reduction, call.count}};
                            },
                            nullptr};
const Collective kReduceScatter{
    "reduce_scatter",
    true,
    false,
    true,
    [](size_t count, size_t, int ranks) {
      return Extents{count, count / ranks, count / ranks, 0, count / ranks};
    },
    nullptr,
    nullptr,
    [](const Call& call) {
      return std::vector<Piece>{{Piece::Source::Reduction, call.count, 0, call.rank * call.count}};
    },
    nullptr};
const Collective kAllGather{"all_gather",
                            false,
                            false,
                            true,
                            [](size_t count, size_t, int ranks) {
                              return Extents{count / ranks, count, count / ranks, count / ranks, 0};
                            },
                            nullptr,
                            nullptr,
                            [](const Call& call) {
                              std::vector<Piece> pieces;
                              for (int rank = 0; rank < call.ranks; ++rank) {
                                pieces.push_back({Piece::Source::Rank, call.count, rank});
                              }
                              return pieces;
                            },
                            nullptr};
const Collective kReduce{
    "reduce",
    true,
    true,
    true,
    [](size_t count, size_t, int) {
      return Extents{count, count, count, 0, 0};
    },
    nullptr,
    nullptr,
    [](const Call& call) {
      return std::vector<Piece>{
          {call.rank == call.root ? Piece::Source::Reduction : Piece::Source::Untouched, call.count}};
    },
    nullptr};

// One rank's call, played by the test in place of a library.
class Played {
 public:
  Played(const Collective& collective, Place place, pealDataType_t type, Combine combine, int rank)
      : collective_(collective),
        extents_(collective.extents(kShare * kRanks, typeInfo(type).bytes, kRanks)),
        call_{extents_.parameter, type, pealSum, 1, rank, kRanks},
        values_(type, combine, kRanks, 9),
        send_(kShare * kRanks * 8, 64, Placement::Plain, nullptr, PEAL_DEVICE_HOST),
        receive_(kShare * kRanks * 8, 64, Placement::Plain, nullptr, PEAL_DEVICE_HOST),
        verifier_(collective, send_, receive_, place) {
    verifier_.prepare(call_, extents_, values_);
  }

  // What a perfect library does.
  void play() {
    auto* to = static_cast<std::byte*>(verifier_.receivePointer(call_, extents_));
    for (const Piece& piece : collective_.result(call_)) {
      if (piece.source == Piece::Source::Rank) {
        values_.input(piece.rank, piece.sourceAt, piece.count, to);
      } else if (piece.source == Piece::Source::Reduction) {
        values_.reduced(piece.sourceAt, piece.count, to);
      }
      to += piece.count * elementBytes();
    }
  }

  Findings check() const { return verifier_.check(call_, extents_, values_); }
  std::byte* received() { return static_cast<std::byte*>(verifier_.receivePointer(call_, extents_)); }
  std::byte* sent() {
    return const_cast<std::byte*>(static_cast<const std::byte*>(verifier_.sendPointer(call_, extents_)));
  }
  std::byte* received(size_t element) { return received() + element * elementBytes(); }
  size_t elementBytes() const { return values_.type().bytes; }
  const Extents& extents() const { return extents_; }
  const Values& values() const { return values_; }
  Arena& receiveArena() { return receive_; }

 private:
  const Collective& collective_;
  Extents extents_;
  Call call_;
  Values values_;
  Arena send_, receive_;
  Verifier verifier_;
};

void flip(std::byte* at) { *at ^= std::byte{1}; }

TEST(Verify, APerfectLibraryPasses) {
  for (const Collective* collective : {&kAllReduce, &kReduceScatter, &kAllGather, &kReduce}) {
    for (const Place place : {Place::Out, Place::In}) {
      for (int rank = 0; rank < kRanks; ++rank) {
        for (const pealDataType_t type : parseTypes("all")) {
          Played played(*collective, place, type, collective->reduces ? Combine::Sum : Combine::Copy, rank);
          played.play();
          const Findings findings = played.check();
          EXPECT_EQ(findings.first, "")
              << collective->program << " " << typeInfo(type).name << " rank " << rank;
          EXPECT_EQ(findings.wrongElements + findings.strayBytes, 0U);
        }
      }
    }
  }
}

TEST(Verify, ACallThatDoesNothingIsWrongNearlyEverywhere) {
  for (const Place place : {Place::Out, Place::In}) {
    Played played(kAllReduce, place, pealFloat32, Combine::Sum, 2);
    const Findings findings = played.check();
    EXPECT_GT(findings.wrongElements, kShare * kRanks * 99 / 100);
    EXPECT_EQ(findings.strayBytes, 0U);
  }
}

TEST(Verify, CountsEveryWrongElementAndNamesTheFirst) {
  Played played(kAllReduce, Place::Out, pealInt32, Combine::Sum, 0);
  played.play();
  for (const size_t element : {size_t{1023}, size_t{1024}, size_t{5999}}) {
    flip(played.received(element));
  }
  const Findings findings = played.check();
  EXPECT_EQ(findings.wrongElements, 3U);
  EXPECT_EQ(findings.strayBytes, 0U);
  EXPECT_NE(findings.first.find("element 1023 of the result is "), std::string::npos) << findings.first;
}

TEST(Verify, SeesAnyBitOfAnyElement) {
  for (const pealDataType_t type : parseTypes("all")) {
    Played played(kAllReduce, Place::Out, type, Combine::Sum, 0);
    for (size_t bit = 0; bit < 8 * played.elementBytes(); ++bit) {
      played.play();
      *(played.received(40) + bit / 8) ^= static_cast<std::byte>(1U << (bit % 8));
      EXPECT_EQ(played.check().wrongElements, 1U) << typeInfo(type).name << " bit " << bit;
    }
  }
}

TEST(Verify, SeesExchangedBlocks) {
  Played played(kAllGather, Place::Out, pealBfloat16, Combine::Copy, 3);
  played.play();
  const size_t blockBytes = kShare * played.elementBytes();
  std::swap_ranges(played.received(), played.received() + blockBytes, played.received() + blockBytes);
  EXPECT_GT(played.check().wrongElements, 2 * kShare * 99 / 100);
}

TEST(Verify, SeesShiftedData) {
  Played played(kAllReduce, Place::Out, pealFloat32, Combine::Sum, 3);
  played.play();
  std::memmove(played.received(1), played.received(0), (kShare * kRanks - 1) * 4);
  EXPECT_GT(played.check().wrongElements, kShare * kRanks * 99 / 100);
}

TEST(Verify, SeesDataOfTheCallBefore) {
  Played played(kAllReduce, Place::Out, pealFloat32, Combine::Sum, 3);
  const Values before(pealFloat32, Combine::Sum, kRanks, 8);
  before.reduced(0, kShare * kRanks, played.received());
  EXPECT_GT(played.check().wrongElements, kShare * kRanks * 99 / 100);
}

TEST(Verify, SeesWritesAroundTheReceiveBuffer) {
  for (const Place place : {Place::Out, Place::In}) {
    for (const int64_t at : {int64_t{-1}, -int64_t{Arena::kGuardBytes}, int64_t{kShare * kRanks * 4},
                             int64_t{kShare * kRanks * 4 + Arena::kGuardBytes - 1}}) {
      Played played(kAllReduce, place, pealFloat32, Combine::Sum, 1);
      played.play();
      flip(played.received() + at);
      const Findings findings = played.check();
      EXPECT_EQ(findings.wrongElements, 0U);
      EXPECT_EQ(findings.strayBytes, 1U) << "offset " << at;
      EXPECT_NE(findings.first.find("around the receive buffer"), std::string::npos) << findings.first;
    }
  }
}

TEST(Verify, SeesWritesToTheSendBuffer) {
  Played played(kAllReduce, Place::Out, pealFloat32, Combine::Sum, 1);
  played.play();
  flip(played.sent() + 4 * 1200);
  flip(played.sent() - 1);
  const Findings findings = played.check();
  EXPECT_EQ(findings.wrongElements, 0U);
  EXPECT_EQ(findings.strayBytes, 5U);  // an element, and a byte of the guard
}

TEST(Verify, InPlaceReduceScatterLeavesTheOtherSharesAlone) {
  for (const int rank : {0, 2, 3}) {
    for (int share = 0; share < kRanks; ++share) {
      if (share == rank) {
        continue;
      }
      Played played(kReduceScatter, Place::In, pealFloat32, Combine::Sum, rank);
      played.play();
      flip(played.receiveArena().data() + (share * kShare + 7) * 4);
      const Findings findings = played.check();
      EXPECT_EQ(findings.wrongElements, 0U);
      EXPECT_EQ(findings.strayBytes, 4U) << "rank " << rank << ", share " << share;
    }
  }
}

TEST(Verify, ReduceLeavesOtherRanksBuffersAlone) {
  for (const Place place : {Place::Out, Place::In}) {
    Played played(kReduce, place, pealFloat32, Combine::Sum, 0);  // the root is 1
    flip(played.received(17));
    EXPECT_EQ(played.check().wrongElements, 1U);
  }
}

TEST(Verify, GuardsFollowTheShift) {
  Arena arena(256, 64, Placement::Plain, nullptr, PEAL_DEVICE_HOST);
  arena.shift(4);
  arena.fillGuards(100);
  int64_t at = 0;
  EXPECT_EQ(arena.damagedGuardBytes(100, &at), 0U);
  flip(arena.data() + 100);
  flip(arena.data() + 105);
  EXPECT_EQ(arena.damagedGuardBytes(100, &at), 2U);
  EXPECT_EQ(at, 100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % 64, 4U);
}

}  // namespace
}  // namespace peal::bench

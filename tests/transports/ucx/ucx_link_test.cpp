// Messages over UCX: sizes, order, credits, references, leaving, strangers.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "tests/transports/ucx/ucx_pair.h"

namespace peal::test {
namespace {

bool tryPost(Link& link, const std::vector<std::byte>& data, uint32_t sequence) {
  std::byte* slot = link.tryStage(data.size());
  if (slot == nullptr) {
    return false;
  }
  if (!data.empty()) {
    std::memcpy(slot, data.data(), data.size());
  }
  link.post(data.size(), digestOf(sequence));
  return true;
}

// The message that is there is this one; releases it.
void expectArrival(Link& link, const std::vector<std::byte>& data, uint32_t sequence) {
  Arrival arrival;
  ASSERT_TRUE(link.tryReceive(arrival));
  EXPECT_EQ(arrival.digest, digestOf(sequence));
  ASSERT_EQ(arrival.bytes, data.size());
  EXPECT_TRUE(data.empty() || std::memcmp(arrival.data, data.data(), data.size()) == 0) << sequence;
  link.release();
}

bool hasArrival(Link& link) {
  Arrival arrival;
  return link.tryReceive(arrival);
}

TEST(UcxLink, EverySizeArrivesInOrderWithItsDigest) {
  for (const size_t slotBytes : {size_t{64}, size_t{4096}, size_t{65536}, size_t{1} << 20}) {
    UcxRanks ranks(2, {slotBytes, 3});
    ASSERT_TRUE(ranks.good());
    std::vector<size_t> sizes{0, 1, 2, 31, 63, 64};
    for (const size_t bytes : {size_t{65}, size_t{997}, size_t{4095}, size_t{4096}, size_t{8000},
                               size_t{8192}, size_t{16384}, slotBytes - 1, slotBytes}) {
      if (bytes <= slotBytes) {
        sizes.push_back(bytes);
      }
    }
    uint32_t number = 0;
    for (int turn = 0; turn < 3; ++turn) {
      for (const size_t bytes : sizes) {
        const std::vector<std::byte> there = bytesOf(static_cast<int>(number), bytes);
        const std::vector<std::byte> back = bytesOf(static_cast<int>(number) + 5000, bytes);
        ASSERT_TRUE(ranks.until([&] { return tryPost(ranks.link(0, 1), there, number); }));
        ASSERT_TRUE(ranks.until([&] { return tryPost(ranks.link(1, 0), back, number); }));
        ASSERT_TRUE(
            ranks.until([&] { return hasArrival(ranks.link(1, 0)) && hasArrival(ranks.link(0, 1)); }));
        expectArrival(ranks.link(1, 0), there, number);
        expectArrival(ranks.link(0, 1), back, number);
        ++number;
      }
    }
    EXPECT_FALSE(ranks[0].fault());
    EXPECT_FALSE(ranks[1].fault());
  }
}

TEST(UcxLink, CreditsRunOutAndComeBackOneByOne) {
  constexpr uint32_t kSlots = 3;
  UcxRanks ranks(2, {4096, kSlots});
  ASSERT_TRUE(ranks.good());
  Link& out = ranks.link(0, 1);
  Link& in = ranks.link(1, 0);
  for (uint32_t number = 0; number < kSlots; ++number) {
    ASSERT_TRUE(ranks.until([&] { return tryPost(out, bytesOf(static_cast<int>(number), 3000), number); }));
  }
  ASSERT_TRUE(ranks.until([&] { return ranks[0].settled() && hasArrival(in); }));
  EXPECT_FALSE(ranks.until([&] { return out.tryStage(1) != nullptr; }, 50));
  EXPECT_EQ(out.posted(), kSlots);
  EXPECT_FALSE(out.released(1));
  for (uint32_t number = 0; number < 4 * kSlots; ++number) {
    ASSERT_TRUE(ranks.until([&] { return hasArrival(in); }));
    expectArrival(in, bytesOf(static_cast<int>(number), 3000), number);
    // Exactly one more may go.
    ASSERT_TRUE(ranks.until(
        [&] { return tryPost(out, bytesOf(static_cast<int>(number + kSlots), 3000), number + kSlots); }));
    EXPECT_EQ(out.tryStage(1), nullptr);
  }
}

TEST(UcxLink, ReferencesAreReadFromWhereTheyLie) {
  UcxRanks ranks(2, {65536, 4});
  ASSERT_TRUE(ranks.good());
  Link& out = ranks.link(0, 1);
  Link& in = ranks.link(1, 0);
  std::vector<std::byte> data = bytesOf(1, 65536 * 3);
  EXPECT_TRUE(out.canReference(data.data(), 65536));
  EXPECT_FALSE(out.canReference(data.data(), 65537));
  EXPECT_FALSE(out.tryPostReference(data.data(), 65537, digestOf(0)));
  for (uint32_t number = 0; number < 30; ++number) {
    const size_t bytes = std::vector<size_t>{0, 1, 8192, 65535, 65536}[number % 5];
    const size_t offset = (number % 3) * 65536;
    const std::vector<std::byte> expected(data.begin() + static_cast<std::ptrdiff_t>(offset),
                                          data.begin() + static_cast<std::ptrdiff_t>(offset + bytes));
    ASSERT_TRUE(
        ranks.until([&] { return out.tryPostReference(data.data() + offset, bytes, digestOf(number)); }));
    ASSERT_TRUE(ranks.until([&] { return out.drained(); }));
    EXPECT_TRUE(out.released(out.posted()));
    // Free again: what arrives is what was there before.
    std::fill_n(data.begin() + static_cast<std::ptrdiff_t>(offset), bytes, std::byte{0});
    ASSERT_TRUE(ranks.until([&] { return hasArrival(in); }));
    expectArrival(in, expected, number);
    std::copy(expected.begin(), expected.end(), data.begin() + static_cast<std::ptrdiff_t>(offset));
  }
}

TEST(UcxLink, AllPairsBothWaysAtOnce) {
  constexpr int kSize = 4;
  UcxRanks ranks(kSize, {256, 1});
  ASSERT_TRUE(ranks.good());
  for (uint32_t number = 0; number < 40; ++number) {
    for (int rank = 0; rank < kSize; ++rank) {
      for (int peer = 0; peer < kSize; ++peer) {
        if (peer != rank) {
          ASSERT_TRUE(ranks.until([&] {
            return tryPost(ranks.link(rank, peer), bytesOf(rank * 10 + peer, number % 257), number);
          }));
        }
      }
    }
    for (int rank = 0; rank < kSize; ++rank) {
      for (int peer = 0; peer < kSize; ++peer) {
        if (peer != rank) {
          ASSERT_TRUE(ranks.until([&] { return hasArrival(ranks.link(rank, peer)); }));
          expectArrival(ranks.link(rank, peer), bytesOf(peer * 10 + rank, number % 257), number);
        }
      }
    }
  }
}

// What a rank posted and settled reaches its peer even if the rank is gone when the peer looks.
TEST(UcxLink, MessagesOutliveTheirSender) {
  UcxRanks ranks(2, {65536, 4});
  ASSERT_TRUE(ranks.good());
  for (uint32_t number = 0; number < 4; ++number) {
    ASSERT_TRUE(ranks.until(
        [&] { return tryPost(ranks.link(0, 1), bytesOf(static_cast<int>(number), 10000), number); }));
  }
  const auto begin = Clock::now();
  ranks.end(0);
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  for (uint32_t number = 0; number < 4; ++number) {
    ASSERT_TRUE(ranks.until([&] { return hasArrival(ranks.link(1, 0)); }));
    expectArrival(ranks.link(1, 0), bytesOf(static_cast<int>(number), 10000), number);
  }
  // It left in good order: no fault, and what is posted now goes nowhere.
  EXPECT_FALSE(ranks.until([&] { return ranks[1].fault().has_value(); }, 300));
  EXPECT_TRUE(tryPost(ranks.link(1, 0), bytesOf(1, 100), 1));
  EXPECT_TRUE(ranks.until([&] { return ranks[1].settled(); }));
  EXPECT_FALSE(ranks[1].fault());
}

// Once a rank is settled, nothing of what it posted waits for its next call. The sockets have little memory,
// so that they refuse a part of it.
TEST(UcxLink, WhatIsSettledArrivesWithoutItsSender) {
  int settledTurns = 0;
  for (const size_t bytes : {size_t{8}, size_t{2000}, size_t{8000}, size_t{65536}}) {
    constexpr uint32_t kSlots = 64;
    setenv("UCX_TCP_SNDBUF", "64k", 1);
    UcxRanks ranks(2, {65536, kSlots});
    unsetenv("UCX_TCP_SNDBUF");
    ASSERT_TRUE(ranks.good());
    uint32_t received = 0;
    uint32_t posted = 0;
    for (int turn = 0; turn < 40; ++turn) {
      const auto most = static_cast<uint32_t>(1 + turn * 7 % 64);
      while (posted - received < most &&
             tryPost(ranks.link(0, 1), bytesOf(static_cast<int>(posted), bytes), posted)) {
        ++posted;
      }
      bool isSettled = false;
      for (int polls = 0; polls < 20 && !isSettled; ++polls) {
        ranks[0].poll();
        isSettled = ranks[0].settled();
      }
      settledTurns += isSettled ? 1 : 0;
      // A settled rank does nothing from here on, and all must arrive.
      const Deadline deadline = Deadline::afterMs(kUcxLimitMs);
      const uint32_t wanted = isSettled ? posted : std::min(posted, received + 3);
      while (received < wanted && !deadline.passed()) {
        if (!isSettled) {
          ranks[0].poll();
        }
        if (hasArrival(ranks.link(1, 0))) {
          expectArrival(ranks.link(1, 0), bytesOf(static_cast<int>(received), bytes), received);
          ++received;
        }
      }
      ASSERT_EQ(received, wanted) << bytes << " bytes, settled: " << isSettled;
    }
  }
  EXPECT_GT(settledTurns, 0);
}

// A failed rank's caller frees its buffers; its peer has stopped reading, so UCX still holds messages of
// them.
TEST(UcxLink, AfterWithdrawingNobodyReadsWhatWasPosted) {
  constexpr size_t kBytes = size_t{1} << 20;
  UcxRanks ranks(2, {kBytes, 64});
  ASSERT_TRUE(ranks.good());
  Link& out = ranks.link(0, 1);
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  for (uint32_t number = 0;
       number < 64 && out.tryPostReference(static_cast<std::byte*>(memory), kBytes, digestOf(number));
       ++number) {
  }
  EXPECT_FALSE(out.drained());
  ranks[0].withdraw();
  EXPECT_TRUE(out.drained());
  ASSERT_EQ(munmap(memory, kBytes), 0);
  ranks.end(0);
}

TEST(UcxLink, TheDescriptorWakesASleeper) {
  UcxRanks ranks(2, {4096, 8});  // credits travel with the messages: nothing else wakes anybody
  ASSERT_TRUE(ranks.good());
  ASSERT_GE(ranks[1].eventDescriptor(), 0);
  for (uint32_t number = 0; number < 20; ++number) {
    ASSERT_TRUE(ranks.until([&] { return ranks[1].arm(); }));
    pollfd sleeper{ranks[1].eventDescriptor(), POLLIN, 0};
    EXPECT_EQ(poll(&sleeper, 1, 0), 0);
    ASSERT_TRUE(tryPost(ranks.link(0, 1), bytesOf(1, 100), number));
    EXPECT_EQ(poll(&sleeper, 1, kUcxLimitMs), 1);
    ASSERT_TRUE(ranks.until([&] { return hasArrival(ranks.link(1, 0)); }));
    expectArrival(ranks.link(1, 0), bytesOf(1, 100), number);
    ASSERT_TRUE(ranks.until([&] { return tryPost(ranks.link(1, 0), {}, number); }));
    ASSERT_TRUE(ranks.until([&] { return hasArrival(ranks.link(0, 1)); }));
    expectArrival(ranks.link(0, 1), {}, number);
  }
}

TEST(UcxLink, ATooLongMessageIsTheCallersFault) {
  UcxRanks ranks(2);
  ASSERT_TRUE(ranks.good());
  EXPECT_EQ(ranks.link(0, 1).tryStage(4097), nullptr);
  ASSERT_TRUE(ranks[0].fault());
  EXPECT_EQ(ranks[0].fault()->peerRank, 0);
  EXPECT_NE(ranks[0].fault()->error.message.find("4097"), std::string::npos);
}

}  // namespace
}  // namespace peal::test

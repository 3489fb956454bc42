// The kernel of grouped sends and receives on simulated ranks: patterns that would deadlock if anything
// waited, order within a pair, sizes around a slice, in all modes of the simulator.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/cuda/kernel_modes.h"
#include "tests/cuda/kernel_transfers.h"

namespace peal::cuda::test {
namespace {

size_t sliceBytes(const KernelRanks& ranks) { return ranks.shape().payloadBytes(Protocol::Simple); }

Group allToAll(const KernelRanks& ranks, size_t bytes) {
  Group group;
  for (int from = 0; from < ranks.size(); ++from) {
    for (int to = 0; to < ranks.size(); ++to) {
      group.transfers.push_back({from, to, bytes + static_cast<size_t>(from + to)});
    }
  }
  return group;
}

// As many transfers as fit any rank's list, between random ranks.
Group scattered(const KernelRanks& ranks, std::mt19937_64& random) {
  const size_t slice = sliceBytes(ranks);
  const size_t sizes[] = {0, 1, 17, slice - 1, slice, slice + 1, 3 * slice, 5 * slice + 3};
  Group group;
  for (int i = 0; i < 40; ++i) {
    const auto any = [&] { return static_cast<int>(random() % static_cast<uint64_t>(ranks.size())); };
    group.transfers.push_back({any(), any(), sizes[random() % std::size(sizes)]});
  }
  return group;
}

class Transfers : public testing::TestWithParam<int> {};

TEST_P(Transfers, Arrive) {
  const int size = GetParam();
  int world = 0;
  for (const int slots : {1, 2, 4}) {
    for (const int channels : {1, 2, 3}) {
      std::mt19937_64 random(static_cast<uint64_t>(100 * size + 10 * slots + channels));
      RanksOptions options{.ranks = size, .channels = channels, .slots = slots};
      options.slotBytes = world % 3 == 2 ? 4480 : 640;
      options.messagesBefore = world % 4 == 3 ? (uint64_t{1} << 32) - 5 : 0;
      KernelRanks ranks(options);
      std::vector<Group> groups = {allToAll(ranks, sliceBytes(ranks)), scattered(ranks, random),
                                   scattered(ranks, random)};
      for (Group& group : groups) {
        group.mixed = random() % 2 == 0;
        group.references = random() % 2 == 0;
        group.misalignment = random() % 3 == 0 ? random() % 16 : 0;
        group.seed = random();
        const auto mode = static_cast<Mode>(world++ % kModes);
        const InMode inMode(mode, static_cast<int64_t>(random() >> 32));
        const std::string wrong = runGroup(ranks, group);
        ASSERT_TRUE(wrong.empty()) << size << " ranks, " << slots << " slots, " << channels << " channels, "
                                   << kModeNames[static_cast<int>(mode)] << ": " << wrong;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, Transfers, testing::Values(1, 2, 3, 4, 5, 8));

// Two ranks that both send first, more than all slots hold.
TEST(Patterns, BothSendFirst) {
  KernelRanks ranks({.ranks = 2, .channels = 1, .slots = 1});
  Group group;
  for (int i = 0; i < 8; ++i) {
    group.transfers.push_back({0, 1, 3 * sliceBytes(ranks)});
    group.transfers.push_back({1, 0, 2 * sliceBytes(ranks) + 5});
  }
  EXPECT_EQ(runGroup(ranks, group), "");
}

// A list as long as it may be, and a slow lane that keeps no other from moving.
TEST(Patterns, LongestList) {
  KernelRanks ranks({.ranks = 2, .channels = 2, .slots = 2});
  Group group;
  group.transfers.push_back({0, 1, 40 * sliceBytes(ranks)});
  while (group.transfers.size() < static_cast<size_t>(kMostTransfers)) {
    const int from = static_cast<int>(group.transfers.size() % 2);
    group.transfers.push_back({from, 1 - from, group.transfers.size() % 40});
  }
  EXPECT_EQ(runGroup(ranks, group), "");
}

}  // namespace
}  // namespace peal::cuda::test

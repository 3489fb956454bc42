// Communicators over several nodes, through the public API. PEAL_HOST_ID makes processes of this machine
// count as being on different nodes; between those, messages go over TCP.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>

#include "peal/adamw.h"
#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

size_t entriesOf(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

// Which node each rank is on.
using Nodes = std::vector<int>;

void setNode(const Nodes& nodes, int rank) {
  setenv("PEAL_HOST_ID", ("node " + std::to_string(nodes[static_cast<size_t>(rank)])).c_str(), 1);
}

void runOnNodes(const Nodes& nodes, const RankBody& body) {
  const int size = static_cast<int>(nodes.size());
  SharedValue<Meeting> meeting;
  expectAllSucceeded(runProcesses(size, kHangs, [&](const Child& child) {
    setNode(nodes, child.index());
    pealComm_t comm = nullptr;
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    if (meeting->join(&comm, child.index(), size, &config) != pealSuccess) {
      child.say(pealGetLastError(nullptr));
      return 2;
    }
    body(comm, child.index());
    PEAL_EXPECT_OK(pealCommDestroy(comm));
    return 0;
  }));
}

void expectCollectivesRight(pealComm_t comm, int rank, int size) {
  for (const size_t count : {1U, 5U, 1000U, 30011U, 200000U}) {
    std::vector<int64_t> data(count);
    std::iota(data.begin(), data.end(), rank);
    PEAL_ASSERT_OK(pealAllReduce(data.data(), data.data(), count, pealInt64, pealSum, comm, nullptr));
    const int64_t ranks = size * (size - 1) / 2;
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(data[i], static_cast<int64_t>(i) * size + ranks)
          << "all_reduce, element " << i << " of " << count;
    }
    std::vector<int32_t> mine(count, 100 + rank);
    std::vector<int32_t> all(count * static_cast<size_t>(size));
    PEAL_ASSERT_OK(pealAllGather(mine.data(), all.data(), count, pealInt32, comm, nullptr));
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(all[i], 100 + static_cast<int>(i / count)) << "all_gather, element " << i;
    }
    PEAL_ASSERT_OK(pealReduceScatter(all.data(), mine.data(), count, pealInt32, pealMax, comm, nullptr));
    ASSERT_EQ(mine, std::vector<int32_t>(count, 100 + rank));
    const int root = static_cast<int>(count) % size;
    PEAL_ASSERT_OK(pealBroadcast(mine.data(), mine.data(), count, pealInt32, root, comm, nullptr));
    ASSERT_EQ(mine, std::vector<int32_t>(count, 100 + root));
    PEAL_ASSERT_OK(pealReduce(mine.data(), mine.data(), count, pealInt32, pealSum, root, comm, nullptr));
    if (rank == root) {
      ASSERT_EQ(mine, std::vector<int32_t>(count, (100 + root) * size));
    }
  }
  PEAL_ASSERT_OK(pealBarrier(comm, nullptr));
}

// Many rounds that run ahead of each other, through slots that are few beside them.
void expectFusedStepRight(pealComm_t comm, int rank, int size) {
  constexpr size_t kMost = 1000003;
  std::vector<int32_t> data(kMost);
  std::iota(data.begin(), data.end(), rank);
  std::vector<size_t> counts(static_cast<size_t>(size), kMost / static_cast<size_t>(size));
  counts.back() += kMost % static_cast<size_t>(size);
  const auto negate = [](void* /*user*/, void* values, size_t /*first*/, size_t count) {
    std::transform(static_cast<int32_t*>(values), static_cast<int32_t*>(values) + count,
                   static_cast<int32_t*>(values), std::negate<>());
  };
  std::vector<int32_t> results(kMost);
  PEAL_ASSERT_OK(pealReduceApplyGather(data.data(), results.data(), counts.data(), pealInt32, negate, nullptr,
                                       comm, nullptr));
  for (size_t i = 0; i < kMost; ++i) {
    ASSERT_EQ(results[i], -(static_cast<int32_t>(i) * size + size * (size - 1) / 2)) << i;
  }
}

class OnNodes : public ::testing::TestWithParam<Nodes> {};

TEST_P(OnNodes, EveryCollectiveIsRight) {
  const int size = static_cast<int>(GetParam().size());
  runOnNodes(GetParam(), [&](pealComm_t comm, int rank) {
    expectCollectivesRight(comm, rank, size);
    expectFusedStepRight(comm, rank, size);
  });
}

INSTANTIATE_TEST_SUITE_P(Arrangements, OnNodes,
                         ::testing::Values(Nodes{0, 1}, Nodes{0, 1, 2}, Nodes{0, 0, 1, 1}, Nodes{0, 1, 0, 1},
                                           Nodes{0, 1, 1, 1}, Nodes{0, 1, 2, 0, 1}),
                         [](const auto& row) {
                           std::string name;
                           for (const int node : row.param) {
                             name += std::to_string(node);
                           }
                           return name;
                         });

TEST(Nodes, SendsCrossNodesBothWaysAtOnce) {
  runOnNodes({0, 1, 0, 1}, [](pealComm_t comm, int rank) {
    constexpr size_t kCount = 150000;  // more than the slots of a link hold
    std::vector<int32_t> out(kCount, rank);
    std::vector<std::vector<int32_t>> in(4, std::vector<int32_t>(kCount));
    PEAL_ASSERT_OK(pealGroupStart());
    for (int peer = 0; peer < 4; ++peer) {
      PEAL_EXPECT_OK(pealSend(out.data(), kCount, pealInt32, peer, comm, nullptr));
      PEAL_EXPECT_OK(pealRecv(in[static_cast<size_t>(peer)].data(), kCount, pealInt32, peer, comm, nullptr));
    }
    PEAL_ASSERT_OK(pealGroupEnd());
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(in[static_cast<size_t>(peer)], std::vector<int32_t>(kCount, peer));
    }
  });
}

TEST(Nodes, SplitWorksInsideAndAcrossNodes) {
  runOnNodes({0, 0, 1, 1}, [](pealComm_t comm, int rank) {
    const int node = rank / 2;
    const int local = rank % 2;
    for (const auto& [color, partRank] : {std::pair{node, local}, std::pair{local, node}}) {
      pealComm_t part = nullptr;
      PEAL_ASSERT_OK(pealCommSplit(comm, color, rank, &part, nullptr));
      expectCollectivesRight(part, partRank, 2);
      PEAL_EXPECT_OK(pealCommDestroy(part));
    }
  });
}

// Neither threads nor descriptors stay when a communicator has ended.
TEST(Nodes, ACommunicatorLeavesNothingBehind) {
  runOnNodes({0, 1, 1}, [](pealComm_t comm, int rank) {
    size_t threads = 0;
    size_t descriptors = 0;
    for (int turn = 0; turn < 3; ++turn) {
      pealComm_t child = nullptr;
      PEAL_ASSERT_OK(pealCommSplit(comm, 0, rank, &child, nullptr));
      PEAL_ASSERT_OK(pealBarrier(child, nullptr));
      PEAL_ASSERT_OK(pealCommDestroy(child));
      PEAL_ASSERT_OK(pealBarrier(comm, nullptr));
      if (turn == 0) {  // some are kept for the process
        threads = entriesOf("/proc/self/task");
        descriptors = entriesOf("/proc/self/fd");
      }
    }
    EXPECT_LE(entriesOf("/proc/self/task"), threads);
    EXPECT_LE(entriesOf("/proc/self/fd"), descriptors);
  });
}

// What each rank was told when making the communicator failed.
std::vector<std::string> refusals(int size, const std::function<void(int rank)>& prepare) {
  SharedValue<Meeting> meeting;
  std::vector<std::string> texts;
  for (const ChildResult& result : runProcesses(size, kHangs, [&](const Child& child) {
         prepare(child.index());
         pealComm_t comm = nullptr;
         pealConfig_t config = PEAL_CONFIG_INITIALIZER;
         EXPECT_NE(meeting->join(&comm, child.index(), size, &config), pealSuccess);
         child.say(pealGetLastError(nullptr));
         return 0;
       })) {
    EXPECT_EQ(result.exitCode, 0) << result.message;
    texts.push_back(result.message);
  }
  return texts;
}

TEST(Nodes, WithoutANetworkTheErrorSaysWhatWasTried) {
  if (std::filesystem::exists("/dev/infiniband")) {
    GTEST_SKIP() << "this machine has RDMA devices, and the test needs a transport that fails";
  }
  for (const std::string& text : refusals(2, [](int rank) {
         setNode({0, 1}, rank);
         setenv("PEAL_TRANSPORT", "verbs", 1);
       })) {
    EXPECT_TRUE(mentions(text, "verbs: on ranks 0 and 1: ")) << text;
    EXPECT_TRUE(mentions(text, "PEAL_TRANSPORT")) << text;
    EXPECT_FALSE(mentions(text, "ucx: ")) << text;
  }
}

TEST(Nodes, WithoutANetworkTheErrorNamesTheInterfaceThatWasTried) {
  for (const std::string& text : refusals(2, [](int rank) {
         setNode({0, 1}, rank);
         setenv("PEAL_TRANSPORT", "ucx", 1);
         setenv("UCX_NET_DEVICES", "none0", 1);
       })) {
    if (mentions(text, "built without UCX") || mentions(text, "cannot be opened")) {
      GTEST_SKIP() << text;
    }
    EXPECT_TRUE(mentions(text, "ucx: on ranks 0 and 1: ")) << text;
    EXPECT_TRUE(mentions(text, " over none0 failed")) << text;
  }
}

TEST(Nodes, ThePatternOfInterfacesListsWhatThereIs) {
  for (const std::string& text : refusals(2, [](int rank) {
         setNode({0, 1}, rank);
         setenv("PEAL_INTERFACE", rank == 0 ? "" : "203.0.113.0/24", 1);
       })) {
    EXPECT_TRUE(mentions(text, "on rank 1: PEAL_INTERFACE=\"203.0.113.0/24\" selects none")) << text;
    EXPECT_TRUE(mentions(text, "lo (127.0.0.1)")) << text;
  }
}

TEST(Nodes, RanksMustAskForTheSameTransport) {
  for (const std::string& text : refusals(2, [](int rank) {
         setNode({0, 1}, rank);
         setenv("PEAL_TRANSPORT", rank == 0 ? "ucx" : "auto", 1);
       })) {
    EXPECT_TRUE(mentions(text, "PEAL_TRANSPORT is")) << text;
    EXPECT_TRUE(mentions(text, "ucx on rank 0")) << text;
  }
}

}  // namespace
}  // namespace peal::test

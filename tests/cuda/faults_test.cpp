// What kernels do when something is wrong: each kind of fault is reported once, with the right peer; every
// block of every rank leaves.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/kernel_collectives.h"
#include "tests/cuda/kernel_modes.h"
#include "tests/cuda/kernel_transfers.h"
#include "tests/cudasim/core/memory.h"

namespace peal::cuda::test {
namespace {

constexpr RanksOptions kThree{.ranks = 3, .channels = 2, .slots = 2, .timeoutMs = 50};
constexpr uint64_t kStopped = static_cast<uint64_t>(FaultKind::Stopped);
constexpr uint64_t kDeadline = static_cast<uint64_t>(FaultKind::Deadline);
constexpr uint64_t kDigest = static_cast<uint64_t>(FaultKind::Digest);
constexpr uint64_t kBytes = static_cast<uint64_t>(FaultKind::Bytes);

CollectiveCase caseFor(Protocol protocol, Algorithm algorithm = Algorithm::Ring) {
  CollectiveCase test;
  test.algorithm = algorithm;
  test.protocol = protocol;
  test.count = 2000;
  return test;
}

// What every rank launches; tests change some of it. The arrays live as long as this.
struct Launches {
  Launches(const KernelRanks& ranks, const CollectiveCase& what)
      : test(what), buffers(buffersFor(ranks, what)) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      args.push_back(argsFor(ranks, what, buffers, rank));
    }
  }
  // All but rank `without`.
  cudasim::RunResult run(KernelRanks& ranks, int without = -1) {
    std::vector<std::function<void()>> kernels;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      kernels.push_back(rank == without ? std::function<void()>()
                                        : kernelFor(test, args[static_cast<size_t>(rank)]));
    }
    return ranks.run(kernels);
  }
  CollectiveCase test;
  Buffers buffers;
  std::vector<CollectiveArgs> args;
};

class Faults : public testing::TestWithParam<Protocol> {};

TEST_P(Faults, RanksThatDisagreeAreNamed) {
  KernelRanks ranks(kThree);
  Launches launches(ranks, caseFor(GetParam()));
  launches.args[1].digest.count = 1999;
  const cudasim::RunResult result = launches.run(ranks);
  ASSERT_TRUE(result.ok()) << result.text;
  // Rank 1 receives from 0 and rank 2 from 1: one of them is first, and tells the others.
  int reports = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const FaultRecord& fault = ranks.fault(rank);
    EXPECT_EQ(fault.complete, 1U);
    if (fault.kind == kDigest) {
      ++reports;
      EXPECT_EQ(fault.peerRank, rank - 1);
      EXPECT_EQ(fault.expected.count, rank == 1 ? 1999U : 2000U);
      EXPECT_EQ(fault.arrived.count, rank == 1 ? 2000U : 1999U);
      EXPECT_EQ(fault.expected.sequence, 0U);
    } else {
      EXPECT_EQ(fault.kind, kStopped) << describe(fault);
      EXPECT_TRUE(fault.peerRank == 1 || fault.peerRank == 2);
    }
  }
  EXPECT_GE(reports, 1);
}

TEST_P(Faults, UnequalMessagesAreNamed) {
  KernelRanks ranks({.ranks = 2, .channels = 1, .slots = 2, .timeoutMs = 50});
  Launches launches(ranks, caseFor(GetParam()));
  launches.args[1].chunkCount = 100;
  launches.args[0].chunkCount = 60;
  const cudasim::RunResult result = launches.run(ranks);
  ASSERT_TRUE(result.ok()) << result.text;
  const FaultRecord& fault = ranks.fault(ranks.fault(0).kind == kBytes ? 0 : 1);
  ASSERT_EQ(fault.kind, kBytes) << describe(fault);
  EXPECT_EQ(fault.expectedBytes + fault.arrivedBytes, 4 * 160U);
}

TEST_P(Faults, AMissingRankIsADeadline) {
  for (const Algorithm algorithm : {Algorithm::Ring, Algorithm::OneShot, Algorithm::TwoShot}) {
    KernelRanks ranks(kThree);
    Launches launches(ranks, caseFor(GetParam(), algorithm));
    const cudasim::RunResult result = launches.run(ranks, 2);
    ASSERT_TRUE(result.ok()) << result.text;
    bool named = false;
    for (const int rank : {0, 1}) {
      const FaultRecord& fault = ranks.fault(rank);
      EXPECT_EQ(fault.complete, 1U);
      EXPECT_TRUE(fault.kind == kDeadline || fault.kind == kStopped) << describe(fault);
      // In a ring rank 1 waits for rank 0 as long as that waits for rank 2, and either may be the first.
      named = named || (fault.kind == kDeadline && (fault.peerRank == 2 || algorithm == Algorithm::Ring));
    }
    EXPECT_TRUE(named) << describe(ranks.fault(0)) << "\n" << describe(ranks.fault(1));
    // Nobody tells a rank that is missing; its window says so when it comes.
    EXPECT_NE(*cudasim::toHost(ranks.view(2).stopped), 0U);
    const cudasim::RunResult late = launches.run(ranks, 0);
    ASSERT_TRUE(late.ok()) << late.text;
    EXPECT_EQ(ranks.fault(2).kind, kStopped);
  }
}

TEST_P(Faults, TheHostStopsAWaitingKernel) {
  KernelRanks ranks({.ranks = 2, .channels = 3, .slots = 2, .timeoutMs = 3600000});
  Launches launches(ranks, caseFor(GetParam()));
  ranks.board(0).stop = 1;
  const cudasim::RunResult result = launches.run(ranks, 1);
  ASSERT_TRUE(result.ok()) << result.text;
  EXPECT_EQ(ranks.fault(0).kind, kStopped);
  EXPECT_EQ(ranks.fault(0).peerRank, 0);
  EXPECT_EQ(ranks.fault(0).complete, 1U);
  EXPECT_EQ(*cudasim::toHost(ranks.view(1).stopped), 0U) << "who only reacts tells nobody";
}

// A rank that fails while another one's lines are half written: the reader leaves from inside its message.
TEST(LowLatencyFaults, AMessageThatNeverEndsIsADeadline) {
  for (const Protocol protocol : {Protocol::LL, Protocol::LL128}) {
    KernelRanks ranks({.ranks = 2, .channels = 1, .slots = 2, .timeoutMs = 50});
    CollectiveCase test = caseFor(protocol, Algorithm::OneShot);
    test.count = 100;
    Launches launches(ranks, test);
    // Rank 1's header without its data, as storeHeader writes it.
    DigestWords digest = launches.args[0].digest;
    uint64_t words[4] = {0, 0, 0, 400};
    std::memcpy(words, &digest, sizeof digest);
    std::byte* slot = cudasim::toHost(ranks.view(0).inbox[1]) + ranks.shape().lowSlot(0, protocol, 0);
    for (size_t i = 0; i < 4; ++i) {
      const uint32_t line[4] = {static_cast<uint32_t>(words[i]), 1, static_cast<uint32_t>(words[i] >> 32), 1};
      std::memcpy(slot + 16 * i, line, sizeof line);
    }
    const cudasim::RunResult result = launches.run(ranks, 1);
    ASSERT_TRUE(result.ok()) << result.text;
    EXPECT_EQ(ranks.fault(0).kind, kDeadline);
    EXPECT_EQ(ranks.fault(0).peerRank, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, Faults, testing::Values(Protocol::Simple, Protocol::LL, Protocol::LL128),
                         [](const testing::TestParamInfo<Protocol>& param) {
                           return std::string(protocolName(param.param));
                         });

// ---- transfers ----
struct Posts {
  Posts(const KernelRanks& ranks, const Group& group) : buffers(buffersFor(group)) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      args.push_back(std::make_shared<PointToPointArgs>(argsFor(ranks, group, buffers, rank)));
    }
  }
  cudasim::RunResult run(KernelRanks& ranks, int without = -1) {
    std::vector<std::function<void()>> kernels(args.size());
    for (size_t rank = 0; rank < args.size(); ++rank) {
      if (static_cast<int>(rank) != without) {
        kernels[rank] = [mine = args[rank]] { pointToPointKernel()(*mine); };
      }
    }
    return ranks.run(kernels);
  }
  TransferBuffers buffers;
  std::vector<std::shared_ptr<PointToPointArgs>> args;
};

TEST(TransferFaults, CountsThatDifferAreNamed) {
  KernelRanks ranks(kThree);
  Posts posts(ranks, {.transfers = {{0, 1, 3000}, {1, 2, 10}}});
  TransferArgs& receive = posts.args[1]->transfers[posts.args[1]->transfers[0].isSend != 0 ? 1 : 0];
  receive.digest.count = 2999;
  receive.bytes = 2999;
  const cudasim::RunResult result = posts.run(ranks);
  ASSERT_TRUE(result.ok()) << result.text;
  EXPECT_EQ(ranks.fault(1).kind, kDigest);
  EXPECT_EQ(ranks.fault(1).peerRank, 0);
  EXPECT_EQ(ranks.fault(1).arrived.count, 3000U);
  EXPECT_EQ(ranks.fault(1).expected.count, 2999U);
}

TEST(TransferFaults, AMissingPeerIsADeadline) {
  KernelRanks ranks(kThree);
  Posts posts(ranks, {.transfers = {{0, 1, 30000}, {2, 0, 10}}});
  const cudasim::RunResult result = posts.run(ranks, 2);
  ASSERT_TRUE(result.ok()) << result.text;
  EXPECT_EQ(ranks.fault(0).kind, kDeadline);
  EXPECT_EQ(ranks.fault(0).peerRank, 2);
}

TEST(TransferFaults, TheHostStopsAWaitingKernel) {
  KernelRanks ranks({.ranks = 2, .channels = 2, .slots = 2, .timeoutMs = 3600000});
  Posts posts(ranks, {.transfers = {{0, 1, 30000}}});
  ranks.board(0).stop = 1;
  const cudasim::RunResult result = posts.run(ranks, 1);
  ASSERT_TRUE(result.ok()) << result.text;
  EXPECT_EQ(ranks.fault(0).kind, kStopped);
}

// What the record says of this rank's own operation, whenever it gives up.
TEST(TransferFaults, TheRecordNamesTheTransfer) {
  KernelRanks ranks({.ranks = 2, .channels = 1, .slots = 2, .slotBytes = 8192, .timeoutMs = 50});
  Group group{.transfers = {{0, 1, 5000}, {0, 1, 6000}}};
  group.references = true;
  Posts posts(ranks, group);
  // Both are shown, nobody reads them.
  cudasim::RunResult result = posts.run(ranks, 1);
  ASSERT_TRUE(result.ok()) << result.text;
  EXPECT_EQ(ranks.fault(0).kind, kDeadline);
  EXPECT_EQ(ranks.fault(0).expected.count, 6000U);
  EXPECT_EQ(ranks.fault(0).expected.sequence, 1U);
  EXPECT_EQ(ranks.fault(0).expected.collective, pealStatSend);
  // Rank 1 was told, and comes later.
  result = posts.run(ranks, 0);
  ASSERT_TRUE(result.ok()) << result.text;
  EXPECT_EQ(ranks.fault(1).kind, kStopped);
  EXPECT_EQ(ranks.fault(1).expected.count, 5000U);
  EXPECT_EQ(ranks.fault(1).expected.collective, pealStatRecv);
}

TEST(TransferFaults, SelfTransfersMustMatch) {
  KernelRanks ranks({.ranks = 2, .channels = 1, .slots = 2, .timeoutMs = 50});
  Posts posts(ranks, {.transfers = {{0, 0, 100}, {0, 0, 200}}});
  posts.args[0]->transfers[3].bytes = 100;
  const cudasim::RunResult result = posts.run(ranks, 1);
  ASSERT_TRUE(result.ok()) << result.text;
  EXPECT_EQ(ranks.fault(0).kind, kBytes);
  EXPECT_EQ(ranks.fault(0).peerRank, 0);
}

}  // namespace
}  // namespace peal::cuda::test

// All-to-all, gather and scatter: every element against where it must come from, and what is refused.
#include <gtest/gtest.h>

#include <vector>

#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

// Element i of the block that `from` has for `to`.
int element(int from, int to, size_t i) { return 1000003 * from + 1009 * to + static_cast<int>(i % 997); }

// The blocks of all ranks one after the other; value(r, i) is element i of rank r's.
template <class Value>
std::vector<int> blocks(int size, size_t count, Value&& value) {
  std::vector<int> all;
  for (int rank = 0; rank < size; ++rank) {
    for (size_t i = 0; i < count; ++i) {
      all.push_back(value(rank, i));
    }
  }
  return all;
}

void exchangeAll(pealComm_t comm, int rank, int size, size_t count, pealStream_t stream) {
  const std::vector<int> mine = blocks(size, count, [&](int to, size_t i) { return element(rank, to, i); });
  const std::vector<int> due =
      blocks(size, count, [&](int from, size_t i) { return element(from, rank, i); });
  std::vector<int> got(due.size(), -1);
  PEAL_EXPECT_OK(pealAlltoAll(mine.data(), got.data(), count, pealInt32, comm, stream));
  PEAL_EXPECT_OK(pealStreamSynchronize(stream));
  EXPECT_EQ(got, due) << size << " ranks, " << count << " elements";
}

void gatherAndScatter(pealComm_t comm, int rank, int size, size_t count, int root, bool inPlace) {
  const bool isRoot = rank == root;
  std::vector<int> whole = blocks(size, count, [&](int from, size_t i) { return element(from, root, i); });
  const std::vector<int> all = whole;
  std::vector<int> own(all.begin() + static_cast<ptrdiff_t>(rank * count),
                       all.begin() + static_cast<ptrdiff_t>((rank + 1) * count));
  const std::vector<int> share = own;
  int* const place = whole.data() + rank * count;  // of the root's own block
  if (!isRoot) {
    whole.clear();
  } else {
    std::fill(whole.begin(), whole.end(), -1);
    std::copy(share.begin(), share.end(), inPlace ? place : own.data());
  }
  PEAL_EXPECT_OK(pealGather(isRoot && inPlace ? place : own.data(), isRoot ? whole.data() : nullptr, count,
                            pealInt32, root, comm, nullptr));
  EXPECT_EQ(whole, isRoot ? all : std::vector<int>()) << "gather, rank " << rank << " of " << size;
  std::fill(own.begin(), own.end(), -1);
  PEAL_EXPECT_OK(pealScatter(isRoot ? whole.data() : nullptr, isRoot && inPlace ? place : own.data(), count,
                             pealInt32, root, comm, nullptr));
  EXPECT_EQ(isRoot && inPlace ? std::vector<int>(place, place + count) : own, share)
      << "scatter, rank " << rank << " of " << size;
}

void exchangeInAllWays(pealComm_t comm, int rank, int size) {
  pealStream_t stream = nullptr;
  PEAL_EXPECT_OK(pealStreamCreate(&stream));
  for (const size_t count : {0, 1, 5, 4099, 50021}) {
    exchangeAll(comm, rank, size, count, stream);
    for (const bool inPlace : {false, true}) {
      gatherAndScatter(comm, rank, size, count, static_cast<int>(count) % size, inPlace);
    }
  }
  PEAL_EXPECT_OK(pealStreamDestroy(stream));
}

TEST(Exchanges, MoveEveryBlockToItsPlace) {
  for (const int size : {1, 2, 3, 5}) {
    runAsProcesses(size, [&](pealComm_t comm, int rank) { exchangeInAllWays(comm, rank, size); });
  }
  runAsThreads(3, [&](pealComm_t comm, int rank) { exchangeInAllWays(comm, rank, 3); });
}

TEST(Exchanges, GoTogetherInAGroup) {
  runAsProcesses(3, [](pealComm_t handle, int rank) {
    const std::vector<int> mine = blocks(3, 7, [&](int to, size_t i) { return element(rank, to, i); });
    std::vector<int> all(21), gathered(rank == 1 ? 21 : 0), extra(1);
    const std::vector<int> own{rank};
    PEAL_EXPECT_OK(pealGroupStart());
    PEAL_EXPECT_OK(pealAlltoAll(mine.data(), all.data(), 7, pealInt32, handle, nullptr));
    PEAL_EXPECT_OK(pealGather(mine.data() + 7, gathered.data(), 7, pealInt32, 1, handle, nullptr));
    PEAL_EXPECT_OK(pealSend(own.data(), 1, pealInt32, (rank + 1) % 3, handle, nullptr));
    PEAL_EXPECT_OK(pealRecv(extra.data(), 1, pealInt32, (rank + 2) % 3, handle, nullptr));
    PEAL_EXPECT_OK(pealGroupEnd());
    const std::vector<int> due = blocks(3, 7, [&](int from, size_t i) { return element(from, rank, i); });
    EXPECT_EQ(all, due);
    EXPECT_EQ(gathered, rank == 1 ? due : std::vector<int>());
    EXPECT_EQ(extra[0], (rank + 2) % 3);
  });
}

TEST(Exchanges, AreSendsAndReceivesInTheStatistics) {
  runAsProcesses(3, [](pealComm_t comm, int rank) {
    std::vector<int> from(30), to(30);
    PEAL_EXPECT_OK(pealAlltoAll(from.data(), to.data(), 10, pealInt32, comm, nullptr));
    pealCommStats_t stats{};
    PEAL_EXPECT_OK(pealCommGetStats(comm, &stats));
    EXPECT_EQ(stats.calls[pealStatSend], 3U);
    EXPECT_EQ(stats.calls[pealStatRecv], 3U);
    EXPECT_EQ(stats.bytesSent[pealStatSend], 2 * 10 * sizeof(int)) << "rank " << rank;
  });
}

TEST(Exchanges, NameTheRanksOfDifferentCounts) {
  runAsProcesses(2, [](pealComm_t comm, int rank) {
    std::vector<int> from(100), to(100);
    const pealResult_t result =
        pealAlltoAll(from.data(), to.data(), rank == 0 ? 10 : 20, pealInt32, comm, nullptr);
    EXPECT_TRUE(result == pealInvalidUsage || result == pealRemoteError) << result;
    const std::string sentence = pealGetLastError(nullptr);
    EXPECT_NE(sentence.find("rank"), std::string::npos) << sentence;
  });
}

}  // namespace
}  // namespace peal::test

// Learning what links cost, over shared memory and a grouping that pretends several nodes: all ranks get rank
// 0's numbers, from measurements or from a file.
#include "lib/comm/measure.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "lib/tuner/links_file.h"
#include "tests/algorithms/shapes.h"
#include "tests/support/exchange.h"
#include "tests/support/processes.h"
#include "transports/shm/shm.h"

namespace peal::test {
namespace {

constexpr std::array<uint8_t, 32> kMeasurersSecret{2, 7, 1, 8};

// Gives rank 0's numbers to this rank with the last one, a GPU's that nobody said, as one that was said: the
// second thing that ranks exchange here.
class Misheard final : public Exchange {
 public:
  explicit Misheard(Exchange& exchange) : exchange_(exchange) {}
  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }
  Result<std::vector<std::vector<std::byte>>> allGather(const std::vector<std::byte>& mine) override {
    Result<std::vector<std::vector<std::byte>>> blobs = exchange_.allGather(mine);
    if (blobs && ++calls_ == 2) {
      (*blobs)[0].back() ^= std::byte{0x80};  // the sign
    }
    return blobs;
  }

 private:
  Exchange& exchange_;
  int calls_ = 0;
};

// What each rank of these nodes learns. `mishearing` gets the numbers wrong.
std::vector<Result<LinkTable>> learn(const std::vector<int>& labels, int mishearing = -1) {
  const Placement placement(labels);
  const auto size = static_cast<size_t>(placement->ranks);
  ExchangeBoard board(placement->ranks);
  std::vector<Result<LinkTable>> learnt(size, Result<LinkTable>(Error{pealInternalError, "not run"}));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < placement->ranks; ++rank) {
    threads.emplace_back([&, rank] {
      BoardExchange exchange(board, rank);
      Result<std::unique_ptr<Endpoint>> endpoint = connectShm(
          exchange, kMeasurersSecret, {.slotBytes = 16384, .slots = 4, .deadline = Deadline::afterMs(20000)});
      ASSERT_TRUE(endpoint) << endpoint.error().message;
      const std::atomic<bool> abort{false};
      HostContext context;
      context.endpoint = endpoint->get();
      context.rank = rank;
      context.size = placement->ranks;
      context.grouping = placement->nodes > 1 ? &*placement : nullptr;
      context.timeoutMs = 30000;
      context.abort = &abort;
      context.oversubscribed = true;
      context.name = "test";
      context.sizeScratch(size);
      std::vector<uint32_t> sent(size), received(size);
      Misheard misheard(exchange);
      Exchange& heard = rank == mishearing ? static_cast<Exchange&>(misheard) : exchange;
      learnt[static_cast<size_t>(rank)] = agreeOnLinks(heard, context, sent, received);
      EXPECT_EQ(context.timeoutMs, 30000);
      EXPECT_EQ(context.stats.bytesSent[pealStatSend], 0u);
      (*endpoint)->farewell(-1, "");
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return learnt;
}

// The configuration is read once in a process: a process for each.
void inProcess(const std::string& file, const std::function<void()>& body) {
  expectAllSucceeded(runProcesses(1, kHangs, [&](const Child&) {
    setenv("PEAL_TUNER_FILE", file.c_str(), 1);
    body();
    return 0;
  }));
}

TEST(Measure, AllRanksUseRankZerosNumbers) {
  for (const std::vector<int>& labels :
       {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {0, 1, 1, 2, 2}, {0, 1, 2}}) {
    inProcess("", [&] {
      const std::vector<Result<LinkTable>> learnt = learn(labels);
      for (const Result<LinkTable>& one : learnt) {
        ASSERT_TRUE(one) << one.error().message;
        EXPECT_EQ(*one, *learnt[0]);
      }
      EXPECT_GT(learnt[0]->between.latencyUs, 0);
      EXPECT_GT(learnt[0]->between.usPerByte, 0);
      const bool alone = std::count(labels.begin(), labels.end(), labels[0]) == 1;
      EXPECT_EQ(learnt[0]->inside.latencyUs > 0, !alone);
    });
  }
}

TEST(Measure, ARankWithOtherNumbersIsAnErrorOnAllRanks) {
  for (const int mishearing : {1, 2}) {
    inProcess("", [&] {
      const std::vector<Result<LinkTable>> learnt = learn({0, 0, 1}, mishearing);
      for (size_t rank = 0; rank < learnt.size(); ++rank) {
        ASSERT_FALSE(learnt[rank]) << rank;
        EXPECT_EQ(learnt[rank].error().code, pealInternalError);
        const int other = static_cast<int>(rank) == mishearing ? 0 : mishearing;
        EXPECT_EQ(learnt[rank].error().message, "ranks " + std::to_string(rank) + " and " +
                                                    std::to_string(other) +
                                                    " would choose algorithms by different link costs.");
      }
    });
  }
}

// Nothing is measured there; a file may say what GPUs cost.
TEST(Measure, OneNodeReadsRankZerosFile) {
  const std::string path = testing::TempDir() + "peal_measure_one_node_test";
  std::filesystem::remove(path);
  const auto expectAll = [&](const LinkTable& links) {
    inProcess(path, [&] {
      for (const Result<LinkTable>& one : learn({0, 0, 0})) {
        ASSERT_TRUE(one) << one.error().message;
        EXPECT_EQ(*one, links);
      }
    });
  };
  expectAll(assumedLinks());
  EXPECT_FALSE(std::filesystem::exists(path));
  LinkTable known{{1, 2, 3}, {4, 5, 6}};
  known.gpu.llUs = 0.75;
  writeLinksFile(path, known);
  expectAll(known);
  std::filesystem::remove(path);
}

TEST(Measure, WritesTheFileOnceAndReadsItThen) {
  const std::string path = testing::TempDir() + "peal_measure_test";
  std::filesystem::remove(path);
  inProcess(path, [&] {
    const std::vector<Result<LinkTable>> learnt = learn({0, 0, 1});
    ASSERT_TRUE(learnt[0]) << learnt[0].error().message;
    const Result<std::optional<LinkTable>> written = readLinksFile(path);
    ASSERT_TRUE(written && written->has_value());
    EXPECT_EQ(**written, *learnt[2]);
  });
  const LinkTable others{{1, 2, 3}, {4, 5, 6}};
  writeLinksFile(path, others);
  inProcess(path, [&] {
    for (const Result<LinkTable>& one : learn({0, 0, 1})) {
      ASSERT_TRUE(one) << one.error().message;
      EXPECT_EQ(*one, others);
    }
  });
  std::ofstream(path) << "inside_gap_us quick\n";
  inProcess(path, [&] {
    for (const Result<LinkTable>& one : learn({0, 1, 1})) {
      ASSERT_FALSE(one);
      EXPECT_EQ(one.error().code, pealInvalidArgument);
      EXPECT_NE(one.error().message.find("rank 0: PEAL_TUNER_FILE=" + path + ", line 1"), std::string::npos)
          << one.error().message;
    }
  });
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace peal::test

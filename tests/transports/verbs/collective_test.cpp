// Queue pairs that are destroyed in the middle of a collective of whole communicators over the fake library:
// two nodes of two ranks, shared memory inside, verbs between.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "lib/comm/host_links.h"
#include "lib/executor/host/operation.h"
#include "tests/algorithms/shapes.h"
#include "tests/support/exchange.h"
#include "tests/transports/verbs/machines.h"

namespace peal::test {
namespace {

constexpr int kRanks = 4;
constexpr size_t kCount = 20011;
constexpr std::array<uint8_t, 32> kCollectiveSecret{4, 6, 6, 9};

// Hands sums on as they are, and destroys the queue pairs of its rank at one of them: partial sums have come
// by then, and results have not gone out.
class Breaking final : public HostEpilogue {
 public:
  Breaking(World& world, int rank, bool breaks) : world_(world), rank_(rank), breaks_(breaks) {}
  uint8_t digestOp() const override { return Digest::kApply; }
  bool begin() override { return true; }
  void apply(std::byte* /*values*/, Chunk /*c*/) override {
    if (++calls == 3 && breaks_) {
      world_.breakQueuePairs(rank_);
    }
  }
  int calls = 0;

 private:
  World& world_;
  int rank_;
  bool breaks_;
};

class FourRanks {
 public:
  explicit FourRanks(World& world) : world_(world), machines_(world, kRanks, {"rxe"}) {}

  // An all-reduce on all ranks; the queue pairs of `breaking` are destroyed in it.
  void reduce(Algorithm algorithm, int breaking) {
    std::vector<std::thread> threads;
    ExchangeBoard board(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] { runRank(board, rank, algorithm, rank == breaking); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

 private:
  void runRank(ExchangeBoard& board, int rank, Algorithm algorithm, bool breaks) {
    BoardExchange exchange(board, rank);
    const OpenFabric open = machines_.open(options(4096, 8));
    const Result<std::unique_ptr<Endpoint>> endpoint =
        connectHosts(exchange, kCollectiveSecret, *nodes_,
                     {.slotBytes = 4096,
                      .slots = 8,
                      .interfaces = "",
                      .fabrics = {{"verbs", [&](const FabricOptions&) { return open(rank); }}},
                      .deadline = Deadline::afterMs(30000)});
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    const std::atomic<bool> abort{false};
    HostContext context;
    context.endpoint = endpoint->get();
    context.rank = rank;
    context.size = kRanks;
    context.grouping = &*nodes_;
    context.timeoutMs = 60000;
    context.abort = &abort;
    context.oversubscribed = true;
    context.name = "rank " + std::to_string(rank);
    context.sizeScratch(kRanks);
    runAllReduce(context, algorithm, breaks);
    (*endpoint)->farewell(-1, "");
  }

  void runAllReduce(HostContext& context, Algorithm algorithm, bool breaks) {
    std::vector<float> in(kCount), out(kCount, -1), sums(kCount);
    for (size_t i = 0; i < kCount; ++i) {  // whole numbers: sums are exact
      in[i] = static_cast<float>(static_cast<size_t>(context.rank) * 7 + i % 1000);
      sums[i] = static_cast<float>(7 * (0 + 1 + 2 + 3) + 4 * (i % 1000));
    }
    Breaking epilogue(world_, context.rank, breaks);
    Collective call;
    call.send = in.data();
    call.recv = out.data();
    call.count = kCount;
    for (int rank = 0; rank <= kRanks; ++rank) {
      call.starts.push_back(rank == kRanks ? kCount : Blocks{kCount, kRanks, nullptr}.block(rank).offset);
    }
    call.type = pealFloat32;
    call.op = {.kind = pealSum, .ranks = kRanks};
    call.hasOp = true;
    call.choice = {.algorithm = algorithm, .chunkBytes = 1024, .ahead = 1};
    call.sequence = 1;
    call.epilogue = &epilogue;
    const FakeVerbs& library = *machines_.libraries[static_cast<size_t>(context.rank)];
    const size_t before = library.queuePairs;
    const std::optional<Fault> fault = runCollective(context, call);
    ASSERT_FALSE(fault.has_value()) << fault->error.message;
    EXPECT_TRUE(out == sums) << "rank " << context.rank;
    if (breaks) {  // those that carry the later sums
      EXPECT_GT(library.queuePairs, before) << "none was made anew: nothing was recovered from";
    }
    EXPECT_GT(epilogue.calls, 3) << "queue pairs were destroyed after the last sum, or never";
  }

  World& world_;
  Machines machines_;
  const Placement nodes_{{0, 0, 1, 1}};
};

TEST(VerbsCollective, QueuePairsDestroyedInItsMiddleAreMadeAnewAndAllSumsAreRight) {
  for (const bool delay : {false, true}) {
    for (const Algorithm algorithm : {Algorithm::Hierarchical, Algorithm::TwoShot, Algorithm::Ring}) {
      World world;
      world.delay = delay;
      FourRanks ranks(world);
      ranks.reduce(algorithm, 1);
      expectClean(world);
    }
  }
}

}  // namespace
}  // namespace peal::test

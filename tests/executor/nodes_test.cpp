// Every collective by every algorithm on the host executor, in one process over shared memory, with a
// grouping that pretends several nodes: right sums, in place and out of place, and the same bits on all ranks
// and runs.
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "lib/executor/host/operation.h"
#include "tests/algorithms/shapes.h"
#include "tests/support/exchange.h"
#include "transports/shm/shm.h"

namespace peal::test {
namespace {

constexpr std::array<uint8_t, 32> kSecret{3, 1, 4, 1, 5};

struct Case {
  int kind;
  Algorithm algorithm;
  pealDataType_t type;
  pealRedOp_t op;
  size_t count;  // of the array; scattered: about it
  bool inPlace;
  int root;
  bool given;  // blocks of uneven sizes
  int ahead;
  bool epilogue = false;  // finished sums are doubled before they travel on
};

std::string describeCase(const Case& test) {
  return std::string(collectiveName(test.kind)) + " algorithm " +
         std::to_string(static_cast<int>(test.algorithm)) + " " + typeName(test.type) + " " +
         opName(test.op) + " count " + std::to_string(test.count) + (test.inPlace ? " in place" : "") +
         " root " + std::to_string(test.root) + (test.given ? " given blocks" : "") + " ahead " +
         std::to_string(test.ahead);
}

bool reduces(int kind) {
  return kind == pealStatAllReduce || kind == pealStatReduceScatter || kind == pealStatReduce;
}
bool scatters(int kind) { return kind == pealStatReduceScatter || kind == pealStatAllGather; }

// Small whole numbers: sums of them are exact in every type, whatever the order.
float valueOf(int rank, size_t at) { return static_cast<float>((rank * 5 + static_cast<int>(at % 7)) % 9); }

void store(pealDataType_t type, float value, std::byte* to) {
  if (type == pealInt64) {
    const auto whole = static_cast<int64_t>(value);
    std::memcpy(to, &whole, sizeof whole);
  } else {
    fromFloat(type, value, to);
  }
}

constexpr size_t kSlotBytes = 8192;
bool isLarge(const Case& test) { return test.count >= 20000; }

class Memory {
 public:
  Memory(size_t size, bool readable) : size_(size), own_(readable ? 0 : size) {
    if (readable) {
      EXPECT_EQ(pealMemAlloc(&readable_, size), pealSuccess) << pealGetLastError(nullptr);
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (readable_ != nullptr) {
      EXPECT_EQ(pealMemFree(readable_), pealSuccess);
    }
  }
  std::span<std::byte> bytes() {
    return {readable_ != nullptr ? static_cast<std::byte*>(readable_) : own_.data(), size_};
  }

 private:
  size_t size_;
  std::vector<std::byte> own_;
  void* readable_ = nullptr;
};

// Doubles bf16, and counts what it has seen.
class Doubling final : public HostEpilogue {
 public:
  uint8_t digestOp() const override { return Digest::kApply; }
  bool begin() override { return true; }
  void apply(std::byte* values, Chunk c) override {
    for (size_t i = 0; i < c.count; ++i) {
      fromFloat(pealBfloat16, 2 * toFloat(pealBfloat16, values + 2 * i), values + 2 * i);
    }
    elements += c.count;
  }
  size_t elements = 0;
};

// One rank of one placement, as its thread runs it.
class Runner {
 public:
  Runner(const Grouping& nodes, int rank, Endpoint& endpoint) : nodes_(nodes), rank_(rank) {
    const auto size = static_cast<size_t>(nodes.ranks);
    context_.endpoint = &endpoint;
    context_.rank = rank;
    context_.size = nodes.ranks;
    context_.grouping = &nodes_;
    context_.timeoutMs = 30000;
    context_.abort = &abort_;
    context_.oversubscribed = true;
    context_.name = "rank " + std::to_string(rank);
    context_.sizeScratch(size);
  }

  // What it has posted so far, to ranks of its own node and of others; bytes only of both together:
  // bytesSent().
  LinkTraffic posted() const {
    LinkTraffic sent;
    for (int peer = 0; peer < nodes_.ranks; ++peer) {
      if (peer != rank_) {
        Traffic& to = nodes_.sameNode(peer, rank_) ? sent.inside : sent.between;
        to.messages += context_.endpoint->link(peer).posted();
      }
    }
    return sent;
  }
  size_t bytesSent(int kind) const { return context_.stats.bytesSent[kind]; }

  // As if each rank had a processor, and the peer's were far away: until the next look.
  void pretendFar() {
    context_.oversubscribed = false;
    context_.peerIsFar = true;
    context_.askedIfFar = 0;
  }
  uint32_t askedIfFar() const { return context_.askedIfFar; }

  // The array as the rank has it afterwards; element(i) gives element i of its input.
  template <class Input>
  std::vector<std::byte> run(const Case& test, Input&& element) {
    Collective call;
    call.kind = test.kind;
    call.type = test.type;
    call.op = {.kind = test.op, .ranks = nodes_.ranks};
    call.hasOp = reduces(test.kind);
    call.root = test.kind == pealStatBroadcast || test.kind == pealStatReduce ? test.root : -1;
    call.choice = {
        .algorithm = test.algorithm, .chunkBytes = isLarge(test) ? kSlotBytes : 1024, .ahead = test.ahead};
    call.sequence = ++sequence_;
    call.count = test.count;
    const auto starts = startsOf(test);
    Doubling doubling;
    call.epilogue = test.epilogue ? &doubling : nullptr;
    if (scatters(test.kind) || test.epilogue) {
      call.starts = starts;
      call.count = starts.back();
    }
    const size_t bytes = elementBytes(test.type), total = call.count;
    const size_t begin = scatters(test.kind) ? starts[static_cast<size_t>(rank_)] : 0;
    // Memory that peers can read in place for the large ones, so that references are sent.
    Memory input(total * bytes, isLarge(test)), output(total * bytes, isLarge(test));
    const std::span<std::byte> in = input.bytes(), out = output.bytes();
    std::fill(out.begin(), out.end(), std::byte{0x5a});
    for (size_t i = 0; i < total; ++i) {
      store(test.type, element(i), in.data() + i * bytes);
    }
    if (test.inPlace) {
      std::copy(in.begin(), in.end(), out.begin());
    }
    const std::byte* send = test.inPlace ? out.data() : in.data();
    call.send = test.kind == pealStatAllGather ? send + begin * bytes : send;
    call.recv = test.kind == pealStatReduceScatter ? out.data() + begin * bytes : out.data();
    const std::optional<Fault> fault = runCollective(context_, call);
    EXPECT_FALSE(fault.has_value()) << describeCase(test) << ": " << fault->error.message;
    if (test.epilogue) {
      const auto own = static_cast<size_t>(rank_);
      EXPECT_EQ(doubling.elements, starts[own + 1] - starts[own]) << describeCase(test);
    }
    return {out.begin(), out.end()};
  }

  // Blocks of the array; without given ones as even as it gets.
  std::vector<size_t> startsOf(const Case& test) const {
    std::vector<size_t> starts{0};
    for (int i = 0; i < nodes_.ranks; ++i) {
      const auto k = static_cast<size_t>(i);
      const size_t even = Blocks{test.count, nodes_.ranks, nullptr}.block(i).count;
      starts.push_back(starts.back() + (test.given ? k % 3 * even + k : even));
    }
    return starts;
  }

  void expectRight(const Case& test) {
    const std::vector<std::byte> got = run(test, [&](size_t i) { return valueOf(rank_, i); });
    const std::vector<size_t> starts = startsOf(test);
    const size_t bytes = elementBytes(test.type);
    const bool has = test.kind != pealStatReduce || rank_ == test.root;
    const size_t begin = test.kind == pealStatReduceScatter ? starts[static_cast<size_t>(rank_)] : 0;
    const size_t end =
        test.kind == pealStatReduceScatter ? starts[static_cast<size_t>(rank_) + 1] : got.size() / bytes;
    size_t wrong = 0;
    size_t owner = 0;
    for (size_t i = begin; has && i < end; ++i) {
      while (scatters(test.kind) && starts[owner + 1] <= i) {
        ++owner;
      }
      std::array<std::byte, 8> want{};
      store(test.type, expected(test, i, static_cast<int>(owner)), want.data());
      wrong += std::memcmp(got.data() + i * bytes, want.data(), bytes) != 0 ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0u) << "of " << end - begin << " elements: rank " << rank_ << ", " << describeCase(test);
  }

 private:
  float expected(const Case& test, size_t i, int owner) const {
    if (!reduces(test.kind)) {
      return valueOf(test.kind == pealStatAllGather ? owner : test.root, i);
    }
    float result = valueOf(0, i);
    for (int rank = 1; rank < nodes_.ranks; ++rank) {
      const float value = valueOf(rank, i);
      result = test.op == pealMax ? std::max(result, value) : result + value;
    }
    if (test.op == pealAvg) {
      result = test.type == pealInt64 ? std::trunc(result / static_cast<float>(nodes_.ranks))
                                      : result / static_cast<float>(nodes_.ranks);
    }
    return test.epilogue ? 2 * result : result;
  }

  Grouping nodes_;
  int rank_;
  HostContext context_;
  std::atomic<bool> abort_{false};
  uint32_t sequence_ = 0;
};

// Threads as ranks.
template <class Body>
void runOn(const std::vector<int>& labels, int slots, Body&& body) {
  const Placement placement(labels);
  ExchangeBoard board(placement->ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < placement->ranks; ++rank) {
    threads.emplace_back([&, rank] {
      BoardExchange exchange(board, rank);
      Result<std::unique_ptr<Endpoint>> endpoint = connectShm(
          exchange, kSecret, {.slotBytes = kSlotBytes, .slots = slots, .deadline = Deadline::afterMs(20000)});
      ASSERT_TRUE(endpoint) << endpoint.error().message;
      Runner runner(*placement, rank, **endpoint);
      body(runner, rank, placement->ranks);
      (*endpoint)->farewell(-1, "");
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// The sanitizers look at code, not at values, and take ten times as long. No loop below has this many turns.
#ifdef PEAL_SANITIZED
constexpr int kEvery = 7;
#else
constexpr int kEvery = 1;
#endif

std::vector<Case> casesFor(int ranks, int slots) {
  std::vector<Case> cases;
  constexpr pealDataType_t kTypes[] = {pealFloat32, pealBfloat16, pealInt64};
  constexpr pealRedOp_t kOps[] = {pealSum, pealAvg, pealMax};
  int number = 0;
  for (const int kind :
       {pealStatAllReduce, pealStatReduceScatter, pealStatAllGather, pealStatBroadcast, pealStatReduce}) {
    for (const Algorithm algorithm : {Algorithm::Hierarchical, Algorithm::Tree, Algorithm::TwoShot,
                                      Algorithm::Ring, Algorithm::HierarchicalRing}) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{37}, size_t{4001}, size_t{20011}}) {
        for (const pealDataType_t type : kTypes) {
          for (const bool inPlace : {false, true}) {
            ++number;
            const int most = kind == pealStatAllReduce ? (slots - 1) / 2 : slots - 1;
            const bool flat = algorithm == Algorithm::TwoShot || algorithm == Algorithm::Ring;
            // A root's forms of the ring between nodes are the hierarchical ones.
            const bool same =
                algorithm == Algorithm::HierarchicalRing && !scatters(kind) && kind != pealStatAllReduce;
            if (number % kEvery != 0 || (flat && count != 4001) || same) {
              continue;
            }
            cases.push_back({kind, algorithm, type, kOps[number % 3], count, inPlace, number % ranks,
                             scatters(kind) && number % 5 < 2, number % (most + 1)});
          }
        }
      }
    }
  }
  return cases;
}

class OnPretendedNodes : public testing::TestWithParam<std::vector<int>> {};

TEST_P(OnPretendedNodes, EveryCollectiveIsRight) {
  for (const int slots : {2, 5}) {
    runOn(GetParam(), slots, [&](Runner& runner, int, int ranks) {
      for (const Case& test : casesFor(ranks, slots)) {
        if (test.algorithm == Algorithm::Ring) {  // needs every credit that a short call could keep back
          runner.expectRight(
              {pealStatAllReduce, Algorithm::OneShot, pealFloat32, pealSum, 37, false, 0, false, 0});
        }
        runner.expectRight(test);
        if (testing::Test::HasFailure()) {
          return;
        }
      }
    });
  }
}

// Slots are filled past the caches from 1 KiB on, and nobody sees them half full.
TEST(OfTwoRanks, MessagesToAFarPeerAreRight) {
  runOn({0, 0}, 4, [](Runner& runner, int, int) {
    for (const int kind :
         {pealStatAllReduce, pealStatReduceScatter, pealStatAllGather, pealStatBroadcast, pealStatReduce}) {
      for (const size_t count : {size_t{255}, size_t{256}, size_t{511}, size_t{513}, size_t{4001}}) {
        for (const pealDataType_t type : {pealFloat32, pealBfloat16}) {
          for (const Algorithm algorithm : {Algorithm::OneShot, Algorithm::TwoShot}) {
            runner.pretendFar();
            runner.expectRight({kind, algorithm, type, pealSum, count, count % 2 == 0, 1, false, 0});
          }
        }
      }
    }
    runner.pretendFar();
    runner.expectRight(
        {pealStatAllReduce, Algorithm::OneShot, pealFloat32, pealSum, 256, false, 0, false, 0});
    EXPECT_EQ(runner.askedIfFar(), 1U);
  });
}

// Every algorithm with its finished sums changed before they travel on.
TEST_P(OnPretendedNodes, AnEpilogueChangesEveryElementOnce) {
  for (const int slots : {2, 5}) {
    runOn(GetParam(), slots, [&](Runner& runner, int, int) {
      int number = 0;
      for (const Algorithm algorithm :
           {Algorithm::Hierarchical, Algorithm::TwoShot, Algorithm::Ring, Algorithm::HierarchicalRing}) {
        for (const size_t count : {size_t{0}, size_t{37}, size_t{4001}, size_t{20011}}) {
          for (const bool inPlace : {false, true}) {
            const bool staged = algorithm == Algorithm::Hierarchical || algorithm == Algorithm::TwoShot;
            runner.expectRight({pealStatAllReduce, algorithm, pealBfloat16, pealSum, count, inPlace, 0,
                                number % 3 == 0, staged ? number % ((slots - 1) / 2 + 1) : 0, true});
            ++number;
          }
        }
      }
    });
  }
}

// What a rank posts to ranks of its own node and to others is what cost.h says, which the checker holds the
// algorithms' texts to.
TEST_P(OnPretendedNodes, SendsWhatTheFormulasSay) {
  constexpr size_t kCount = 401;  // one round
  runOn(GetParam(), 4, [&](Runner& runner, int rank, int ranks) {
    const Placement nodes(GetParam());
    const Blocks blocks{kCount, ranks, nullptr};
    LinkTraffic expected;
    for (const auto& [algorithm, id] :
         {std::pair{Algorithm::Hierarchical, AlgorithmId::HierarchicalAllReduce},
          std::pair{Algorithm::HierarchicalRing, AlgorithmId::HierarchicalRingAllReduce}}) {
      expected = expected + trafficOf(id, blocks, *nodes, rank, 0);
      runner.expectRight({pealStatAllReduce, algorithm, pealFloat32, pealSum, kCount, false, 0, false, 0});
      const LinkTraffic posted = runner.posted();
      EXPECT_EQ(posted.inside.messages, expected.inside.messages) << "rank " << rank;
      EXPECT_EQ(posted.between.messages, expected.between.messages) << "rank " << rank;
      EXPECT_EQ(runner.bytesSent(pealStatAllReduce), expected.all().elements * sizeof(float)) << rank;
    }
  });
}

// Numbers whose sum depends on the order: the same bits on all ranks, and again.
TEST_P(OnPretendedNodes, AllRanksGetTheSameBitsOnEveryRun) {
  for (const Algorithm algorithm : {Algorithm::Hierarchical, Algorithm::Tree, Algorithm::HierarchicalRing}) {
    for (const pealDataType_t type : {pealFloat32, pealBfloat16}) {
      std::mutex mutex;
      std::vector<std::vector<std::byte>> results;
      for (int repeat = 0; repeat < 2; ++repeat) {
        runOn(GetParam(), 4, [&](Runner& runner, int rank, int) {
          const Case test{pealStatAllReduce, algorithm, type, pealSum, 5003, repeat == 1, 0, false, repeat};
          std::mt19937 random(static_cast<unsigned>(rank) + 1);
          std::normal_distribution<float> normal;
          std::vector<float> values(test.count);
          for (float& value : values) {
            value = std::ldexp(normal(random), static_cast<int>(random() % 24) - 12);
          }
          std::vector<std::byte> got = runner.run(test, [&](size_t i) { return values[i]; });
          const std::lock_guard lock(mutex);
          results.push_back(std::move(got));
        });
      }
      for (const std::vector<std::byte>& result : results) {
        EXPECT_TRUE(result == results[0]) << static_cast<int>(algorithm) << " " << typeName(type);
      }
    }
  }
}

std::string nameOf(const testing::TestParamInfo<std::vector<int>>& info) {
  std::string name = "on";
  for (const int node : info.param) {
    name += std::to_string(node);
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Placements, OnPretendedNodes,
                         testing::Values(std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1},
                                         std::vector<int>{0, 1, 0, 1}, std::vector<int>{0, 0, 1, 1, 2, 2},
                                         std::vector<int>{0, 0, 0, 1, 1, 1},
                                         std::vector<int>{0, 1, 2, 0, 1, 2}, std::vector<int>{0, 0, 0, 1},
                                         std::vector<int>{0, 1, 1, 2, 0, 1}),
                         nameOf);

}  // namespace
}  // namespace peal::test

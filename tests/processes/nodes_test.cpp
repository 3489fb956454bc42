// Communicators over several nodes, end to end: processes of one machine that count as different hosts
// (PEAL_HOST_ID) and so reach each other by a network; every collective, by what the tuner chooses and by
// forced families. Few calls: tests/executor has many, over shared memory; tests/hosts those on real
// networks.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "lib/reduce/reduce.h"
#include "tests/algorithms/shapes.h"
#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

// Small whole numbers: sums of them are exact in every type.
float valueOf(int rank, size_t at) { return static_cast<float>((rank * 5 + static_cast<int>(at % 7)) % 9); }

std::vector<std::byte> filled(pealDataType_t type, size_t count, const std::function<float(size_t)>& value) {
  std::vector<std::byte> data(count * elementBytes(type));
  for (size_t i = 0; i < count; ++i) {
    fromFloat(type, value(i), data.data() + i * elementBytes(type));
  }
  return data;
}

// The collectives of one communicator, against plain loops.
class Checks {
 public:
  Checks(pealComm_t comm, int rank, int size, pealDataType_t type)
      : comm_(comm), rank_(rank), size_(size), type_(type) {}

  void all(size_t count, bool inPlace, int root) {
    const size_t n = static_cast<size_t>(size_), bytes = elementBytes(type_);
    const auto own = [this](size_t i) { return valueOf(rank_, i); };
    const auto sum = [this](size_t i) {
      float total = 0;
      for (int rank = 0; rank < size_; ++rank) {
        total += valueOf(rank, i);
      }
      return total;
    };
    start(filled(type_, count, own), count, inPlace);
    PEAL_EXPECT_OK(pealAllReduce(in(), out(), count, type_, pealSum, comm_, nullptr));
    expect("all_reduce", filled(type_, count, sum), out());

    start(filled(type_, count * n, own), count * n, inPlace);
    std::byte* part = out() + (inPlace ? static_cast<size_t>(rank_) * count * bytes : 0);
    PEAL_EXPECT_OK(pealReduceScatter(in(), part, count, type_, pealSum, comm_, nullptr));
    expect("reduce_scatter",
           filled(type_, count, [&](size_t i) { return sum(static_cast<size_t>(rank_) * count + i); }), part);

    start(filled(type_, count * n, own), count * n, inPlace);
    PEAL_EXPECT_OK(pealAllGather(in() + static_cast<size_t>(rank_) * count * bytes, out(), count, type_,
                                 comm_, nullptr));
    expect("all_gather",
           filled(type_, count * n,
                  [&](size_t i) { return valueOf(static_cast<int>(i / std::max<size_t>(count, 1)), i); }),
           out());

    start(filled(type_, count, own), count, inPlace);
    PEAL_EXPECT_OK(pealBroadcast(in(), out(), count, type_, root, comm_, nullptr));
    expect("broadcast", filled(type_, count, [&](size_t i) { return valueOf(root, i); }), out());

    start(filled(type_, count, own), count, inPlace);
    PEAL_EXPECT_OK(pealReduce(in(), out(), count, type_, pealSum, root, comm_, nullptr));
    if (rank_ == root) {
      expect("reduce", filled(type_, count, sum), out());
    }
  }

 private:
  void start(std::vector<std::byte> input, size_t count, bool inPlace) {
    inPlace_ = inPlace;
    count_ = count;
    input_ = std::move(input);
    output_ = inPlace ? input_ : std::vector<std::byte>(input_.size(), std::byte{0x5a});
  }
  const std::byte* in() { return inPlace_ ? output_.data() : input_.data(); }
  std::byte* out() { return output_.data(); }
  void expect(const char* what, const std::vector<std::byte>& want, const std::byte* got) const {
    EXPECT_TRUE(want.empty() || std::memcmp(want.data(), got, want.size()) == 0)
        << what << ", rank " << rank_ << " of " << size_ << ", " << typeName(type_) << ", " << count_
        << " elements" << (inPlace_ ? ", in place" : "");
  }

  pealComm_t comm_;
  int rank_;
  int size_;
  pealDataType_t type_;
  bool inPlace_ = false;
  size_t count_ = 0;
  std::vector<std::byte> input_, output_;
};

struct Row {
  std::vector<int> nodeOf;
  const char* algorithm;
};

void PrintTo(const Row& row, std::ostream* stream) {
  *stream << row.algorithm << " on " << row.nodeOf.size();
}

class OnNodes : public ::testing::TestWithParam<Row> {};

// Runs a body on ranks that count as several hosts.
void runOnNodes(const Row& row, const RankBody& body, pealConfig_t config = PEAL_CONFIG_INITIALIZER) {
  const int size = static_cast<int>(row.nodeOf.size());
  SharedValue<Meeting> meeting;
  const std::vector<ChildResult> results = runProcesses(size, kHangs, [&](const Child& child) {
    const int rank = child.index();
    setenv("PEAL_HOST_ID", ("host" + std::to_string(row.nodeOf[static_cast<size_t>(rank)])).c_str(), 1);
    setenv("PEAL_ALGO", row.algorithm, 1);
    pealComm_t comm = nullptr;
    pealConfig_t mine = config;
    if (meeting->join(&comm, rank, size, &mine) != pealSuccess) {
      child.say(pealGetLastError(nullptr));
      return 2;
    }
    body(comm, rank);
    PEAL_EXPECT_OK(pealCommDestroy(comm));
    return 0;
  });
  expectAllSucceeded(results);
}

TEST_P(OnNodes, EveryCollectiveIsRight) {
  const int size = static_cast<int>(GetParam().nodeOf.size());
  runOnNodes(GetParam(), [&](pealComm_t comm, int rank) {
    int number = 0;
    for (const pealDataType_t type : {pealFloat32, pealBfloat16}) {
      Checks checks(comm, rank, size, type);
      for (const size_t count : {size_t{0}, size_t{1}, size_t{20011}}) {
        for (const bool inPlace : {false, true}) {
          checks.all(count, inPlace, number++ % size);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Nodes, OnNodes,
                         ::testing::Values(Row{{0, 1}, "auto"}, Row{{0, 1, 0, 1}, "hierarchical"},
                                           Row{{0, 0, 0, 1}, "hierarchical"}, Row{{0, 0, 1, 1}, "tree"},
                                           Row{{0, 1, 1, 2}, "hierarchical_ring"}));

// What each rank sends is what the formulas of cost.h say, to the byte: those that the checker holds
// algorithms to, inside a node and between nodes apart.
TEST(OnNodesCounted, BytesEqualTheFormulas) {
  constexpr size_t kCount = 20011;
  for (const Row& row : {Row{{0, 0, 1, 1}, "hierarchical"}, Row{{0, 0, 0, 1}, "hierarchical"},
                         Row{{0, 0, 0, 1}, "hierarchical_ring"}, Row{{0, 0, 1, 2, 2}, "hierarchical_ring"}}) {
    SCOPED_TRACE(row.algorithm);
    runOnNodes(row, [&](pealComm_t comm, int rank) {
      const AlgorithmId algorithm = std::strcmp(row.algorithm, "hierarchical") == 0
                                        ? AlgorithmId::HierarchicalAllReduce
                                        : AlgorithmId::HierarchicalRingAllReduce;
      const Placement nodes(row.nodeOf);
      const Blocks blocks{kCount, nodes->ranks, nullptr};
      const LinkTraffic sent = trafficOf(algorithm, blocks, *nodes, rank, 0);
      std::vector<float> data(kCount, 1);
      pealCommStats_t before{}, after{};
      PEAL_EXPECT_OK(pealCommGetStats(comm, &before));
      PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comm, nullptr));
      PEAL_EXPECT_OK(pealCommGetStats(comm, &after));
      EXPECT_EQ(after.bytesSent[pealStatAllReduce] - before.bytesSent[pealStatAllReduce],
                (sent.inside.elements + sent.between.elements) * sizeof(float))
          << "rank " << rank;
    });
  }
}

// Every rank on a node of its own, over a network that wants several messages at a time: chunks of a slot
// and more, which both ends must cut alike whatever the algorithm.
TEST(OnNodesApart, LongCallsOfEveryAlgorithmAreRight) {
  for (const Row& row : {Row{{0, 1}, "auto"}, Row{{0, 1, 2}, "auto"}}) {
    const int size = static_cast<int>(row.nodeOf.size());
    runOnNodes(row, [&](pealComm_t comm, int rank) {
      for (const char* algorithm :
           {"auto", "ring", "one_shot", "two_shot", "hierarchical", "hierarchical_ring", "tree"}) {
        SCOPED_TRACE(algorithm);
        PEAL_EXPECT_OK(pealCommForceAlgorithm(comm, algorithm));
        Checks checks(comm, rank, size, pealFloat32);
        checks.all(200003, false, 1);
      }
    });
  }
}

// A block of 8 MiB, 256 KiB and 256 bytes: its last slice is too short to be sent in place, those before it
// are not.
TEST(OnNodesApart, TwoShotsWithAShortLastSliceAreRight) {
  constexpr size_t kCount = 4325504;
  runOnNodes({{0, 1}, "two_shot"}, [&](pealComm_t comm, int rank) {
    std::vector<float> in(kCount), out(kCount, -1), expected(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      in[i] = valueOf(rank, i);
      expected[i] = valueOf(0, i) + valueOf(1, i);
    }
    PEAL_EXPECT_OK(pealAllReduce(in.data(), out.data(), kCount, pealFloat32, pealSum, comm, nullptr));
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), kCount * sizeof(float)), 0);
  });
}

// The deterministic option between nodes: rank order, bit for bit.
TEST(OnNodesDeterministic, EqualsThePlainLoop) {
  constexpr size_t kCount = 5003;
  const auto inputOf = [](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank) * 7919 + 1);
    std::normal_distribution<float> normal;
    std::vector<float> values(kCount);
    for (float& value : values) {
      value = std::ldexp(normal(random), static_cast<int>(random() % 24) - 12);
    }
    return values;
  };
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  config.deterministic = 1;
  runOnNodes(
      {{0, 1, 0, 1}, "auto"},
      [&](pealComm_t comm, int rank) {
        std::vector<float> expected = inputOf(0);
        for (int other = 1; other < 4; ++other) {
          const std::vector<float> input = inputOf(other);
          for (size_t i = 0; i < kCount; ++i) {
            expected[i] += input[i];
          }
        }
        std::vector<float> data = inputOf(rank);
        PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comm, nullptr));
        EXPECT_EQ(std::memcmp(data.data(), expected.data(), kCount * sizeof(float)), 0);
      },
      config);
}

}  // namespace
}  // namespace peal::test

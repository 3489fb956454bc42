// The same bits over every transport: shared memory of processes, TCP, and UCX where it is there, for two to
// five ranks; stages, buckets, fused or not. Each rank pretends to be a node of its own, so all traffic is
// the network's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "tests/processes/ranks.h"
#include "tests/zero/breadth.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

using peal::test::Child;
using peal::test::ChildResult;

constexpr int kSteps = 2;
#ifdef PEAL_TEST_UCX
constexpr const char* kTransports[] = {"tcp", "ucx"};
#else
constexpr const char* kTransports[] = {"tcp"};
#endif

// Of everything that training leaves.
uint64_t hashOf(Trainer& trainer, const std::vector<double>& norms) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
    }
  };
  for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2, pealZeroWeight}) {
    const std::vector<float> values = trainer.read(tensor);
    add(values.data(), values.size() * sizeof values[0]);
  }
  add(norms.data(), norms.size() * sizeof norms[0]);
  return hash;
}

struct Run {
  int stage;
  size_t bucketBytes;
  bool announces;
};

uint64_t hashAfter(pealComm_t comm, int rank, const Run& run) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = run.stage;
  options.bucketBytes = run.bucketBytes;
  options.skipNonFinite = 0;
  options.weightDecay = 0.1;
  Trainer trainer(comm, rank, options, unevenShape());
  trainer.announces = run.announces;
  std::vector<double> norms;
  uint64_t fused = 0;
  for (int step = 0; step < kSteps; ++step) {
    const pealZeroReport_t report = trainer.step();
    norms.push_back(report.gradientNorm);
    fused += report.fusedBuckets;
  }
  EXPECT_EQ(fused > 0, run.announces);
  return hashOf(trainer, norms);
}

// All runs of one rank: what rank 0 says is one word for each run.
int trainAll(const Child& child, pealComm_t comm) {
  std::string said;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const size_t bucketBytes : {size_t{100}, size_t{1} << 20}) {
      for (const bool announces : {false, true}) {
        if (announces && stage != 1 && stage != 2) {
          continue;
        }
        said += fmt::format("{:016x} ", hashAfter(comm, child.index(), {stage, bucketBytes, announces}));
      }
    }
  }
  child.say(said);
  return 0;
}

// transport: of PEAL_TRANSPORT between pretended nodes; empty: shared memory.
std::string wordsOver(const std::string& transport, int ranks) {
  peal::test::SharedValue<peal::test::Meeting> meeting;
  const std::vector<ChildResult> results =
      peal::test::runProcesses(ranks, peal::test::kHangs, [&](const Child& child) {
        if (!transport.empty()) {
          setenv("PEAL_HOST_ID", fmt::format("node {}", child.index()).c_str(), 1);
          setenv("PEAL_TRANSPORT", transport.c_str(), 1);
        }
        pealComm_t comm = nullptr;
        pealConfig_t config = PEAL_CONFIG_INITIALIZER;
        if (meeting->join(&comm, child.index(), ranks, &config) != pealSuccess) {
          child.say(pealGetLastError(nullptr));
          return 2;
        }
        const int code = trainAll(child, comm);
        return pealCommDestroy(comm) == pealSuccess ? code : 3;
      });
  peal::test::expectAllSucceeded(results);
  for (const ChildResult& result : results) {
    EXPECT_EQ(result.message, results.front().message) << "ranks hold different values";
  }
  return results.front().message;
}

TEST(Transports, GiveTheSameBits) {
  for (const int ranks : rankCounts({1, 2, 3, 4, 5})) {
    SCOPED_TRACE(ranks);
    const std::string expected = wordsOver("", ranks);
    // Every run has one word, and they are all the same: stages, buckets and fused steps change no bits
    // either.
    const std::string word = expected.substr(0, 17);
    std::string repeated;
    for (int run = 0; run < 12; ++run) {
      repeated += word;
    }
    EXPECT_EQ(expected, repeated);
    for (const char* transport : kTransports) {
      SCOPED_TRACE(transport);
      EXPECT_EQ(wordsOver(transport, ranks), expected);
    }
  }
}

}  // namespace
}  // namespace peal::zero::test

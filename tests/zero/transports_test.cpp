// The same bits over every transport: threads, shared memory of processes, TCP, and UCX where it is there,
// for one to five ranks; stages, buckets, overlap or not, fused or not. Over a network each rank pretends to
// be a node of its own, so all traffic is the network's. tests/rdma/inside runs it over verbs in the virtual
// machine: PEAL_TEST_TRANSPORT=verbs gives that one transport, on two ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/processes/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tests/zero/before.h"
#include "tests/zero/breadth.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

using peal::test::Child;
using peal::test::ChildResult;

constexpr int kSteps = 2;

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
  bool announces, overlaps;
};

uint64_t hashAfter(pealComm_t comm, int rank, const Run& run) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = run.stage;
  options.bucketBytes = run.bucketBytes;
  options.skipNonFinite = 0;
  options.weightDecay = 0.1;
  options.prefetchDepth = run.overlaps ? 1 : 0;
  Trainer trainer(comm, rank, options, unevenShape());
  trainer.announces = run.announces;
  if (!run.overlaps) {
    trainer.handedOver = [&](size_t) { finishQueued(trainer.engine().handle()); };
  }
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

// All runs of one rank: one word for each.
std::string wordsOf(pealComm_t comm, int rank) {
  std::string words;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const size_t bucketBytes : {size_t{100}, size_t{1} << 20}) {
      for (const bool announces : {false, true}) {
        for (const bool overlaps : {false, true}) {
          const bool isLegal = !announces || stage == 1 || stage == 2;
          if (isLegal && (overlaps || bucketBytes == 100)) {
            words +=
                fmt::format("{:016x} ", hashAfter(comm, rank, {stage, bucketBytes, announces, overlaps}));
          }
        }
      }
    }
  }
  return words;
}

// What the ranks have logged, each on its standard error, for one who wants to know what carried messages.
class Logs {
 public:
  void keep(int rank) const {
    setenv("PEAL_LOG", "info", 1);
    if (freopen(of(rank).c_str(), "w", stderr) == nullptr) {
      perror("freopen");
    }
  }
  std::string read(int rank) const {
    std::ostringstream text;
    text << std::ifstream(of(rank)).rdbuf();
    return text.str();
  }

 private:
  std::string of(int rank) const { return folder_ / fmt::format("rank {}", rank); }
  const peal::test::ScratchFolder folder_{"peal-zero-transports-"};
};

// transport: of PEAL_TRANSPORT between pretended nodes; empty: shared memory.
std::string wordsOver(const std::string& transport, int ranks) {
  peal::test::SharedValue<peal::test::Meeting> meeting;
  const Logs logs;
  const std::vector<ChildResult> results =
      peal::test::runProcesses(ranks, peal::test::kHangs, [&](const Child& child) {
        logs.keep(child.index());
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
        child.say(wordsOf(comm, child.index()));
        return pealCommDestroy(comm) == pealSuccess ? 0 : 3;
      });
  peal::test::expectAllSucceeded(results);
  for (const ChildResult& result : results) {
    EXPECT_EQ(result.message, results.front().message) << "ranks hold different values";
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string text = logs.read(rank);
    const std::string carries = fmt::format("{} carries messages to {} ranks", transport, ranks - 1);
    const bool hasNetwork = !transport.empty() && ranks > 1;
    EXPECT_EQ(results[static_cast<size_t>(rank)].exitCode, 0) << text;
    EXPECT_EQ(text.find(hasNetwork ? carries : "carries messages") != std::string::npos, hasNetwork) << text;
  }
  return results.front().message;
}

std::string wordsOfThreads(int ranks) {
  std::vector<std::string> words(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) { words[static_cast<size_t>(rank)] = wordsOf(comm, rank); });
  for (const std::string& of : words) {
    EXPECT_EQ(of, words.front()) << "ranks hold different values";
  }
  return words.front();
}

// Empty: UCX can be opened. Asked in a child, as ranks must be forked from a fresh process.
std::string whyNoUcxInAChild() {
  return peal::test::runProcesses(1, peal::test::kHangs,
                                  [](const Child& child) {
                                    child.say(whyNoUcx());
                                    return 0;
                                  })
      .front()
      .message;
}

TEST(Transports, GiveTheSameBits) {
  const char* const only = std::getenv("PEAL_TEST_TRANSPORT");
  const std::string noUcx = only == nullptr ? whyNoUcxInAChild() : "";
  std::vector<std::string> transports{"", "tcp"};
  if (only != nullptr) {
    transports = {only};
  } else if (noUcx.empty()) {
    transports.emplace_back("ucx");
  }
  std::vector<std::pair<int, std::string>> found;
  const std::vector<int> counts = only == nullptr ? rankCounts({1, 2, 3, 4, 5}) : std::vector<int>{2};
  for (const int ranks : counts) {
    for (const std::string& transport : transports) {
      SCOPED_TRACE(fmt::format("{} ranks, transport \"{}\"", ranks, transport));
      found.emplace_back(ranks, wordsOver(transport, ranks));
    }
  }
  // Threads come last: processes are forked from one that has none.
  for (const int ranks : counts) {
    const std::string expected = wordsOfThreads(ranks);
    // Every run has one word, and they are all the same: stages, buckets, overlap and fused steps change no
    // bits either.
    std::string repeated;
    for (int run = 0; run < 18; ++run) {
      repeated += expected.substr(0, 17);
    }
    EXPECT_EQ(expected, repeated);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i].first == ranks) {
        EXPECT_EQ(found[i].second, expected)
            << ranks << " ranks, transport \"" << transports[i % transports.size()] << '"';
      }
    }
  }
  if (!noUcx.empty()) {
    GTEST_SKIP() << "all but UCX gave the same bits: " << noUcx;
  }
}

}  // namespace
}  // namespace peal::zero::test

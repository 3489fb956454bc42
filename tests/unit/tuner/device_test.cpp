// What the tuner predicts and chooses on GPUs, and what it refuses there.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "lib/tuner/device_costs.h"
#include "lib/tuner/predict.h"
#include "lib/tuner/tuner.h"
#include "peal/peal.h"
#include "tests/algorithms/shapes.h"

namespace peal::test::gpus {
namespace {

constexpr int kKinds[] = {pealStatAllReduce, pealStatReduceScatter, pealStatAllGather,
                          pealStatBroadcast, pealStatReduce,        pealStatBarrier};
constexpr GpuPath kPaths[] = {GpuPath::SameDevice, GpuPath::Nvlink, GpuPath::Pcie, GpuPath::HostMemory};

LinkTable linksOn(GpuPath path) {
  LinkTable links = assumedLinks();
  links.gpu = assumedGpuCost(path);
  return links;
}

const LinkTable kNvlink = linksOn(GpuPath::Nvlink);

DeviceQuestion questionOf(int kind, size_t bytes, int size = 8, const LinkTable& links = kNvlink,
                          GpuPath path = GpuPath::Nvlink) {
  return {
      .call = {.kind = kind, .bytes = bytes, .size = size, .slotBytes = 65520, .slots = 4, .links = &links},
      .llBytes = 8160,
      .ll128Bytes = 15120,
      .channels = 16,
      .path = path};
}

DeviceQuestion questionOver(const Placement& nodes, int kind, size_t bytes) {
  DeviceQuestion question = questionOf(kind, bytes, nodes->ranks);
  question.call.nodes = &*nodes;
  question.simpleOnly = true;
  return question;
}

Choice chosen(const DeviceQuestion& question) {
  const Result<Choice> choice = chooseOnDevice(question);
  EXPECT_TRUE(choice) << choice.error().message;
  return choice ? *choice : Choice{};
}

void expectRefused(const DeviceQuestion& question, const std::string& part) {
  const Result<Choice> refused = chooseOnDevice(question);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, pealInvalidUsage);
  EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
}

// Whatever is legal is asked, and nothing else; the least time wins.
TEST(OnGpus, TheQuickestOfAllLegalCandidatesIsChosen) {
  for (const GpuPath path : kPaths) {
    const LinkTable links = linksOn(path);
    for (const int kind : kKinds) {
      for (size_t bytes = 0; bytes <= size_t{1} << 28; bytes = bytes * 16 + 8) {
        const DeviceQuestion question = questionOf(kind, bytes, 8, links, path);
        const Result<std::vector<Candidate>> all = candidatesOnDevice(question);
        ASSERT_TRUE(all) << all.error().message;
        const Choice choice = chosen(question);
        std::set<std::tuple<Algorithm, Protocol, int>> seen;
        double least = INFINITY;
        for (const Candidate& candidate : *all) {
          EXPECT_TRUE(
              seen.emplace(candidate.choice.algorithm, candidate.choice.protocol, candidate.choice.channels)
                  .second);
          EXPECT_TRUE(candidate.choice.protocol != Protocol::LL128 || keepsLinesWhole(path));
          EXPECT_TRUE(std::isfinite(candidate.us));
          if (candidate.us < least) {
            least = candidate.us;
          }
        }
        EXPECT_TRUE(seen.contains({choice.algorithm, choice.protocol, choice.channels}));
        EXPECT_EQ(all->front().us, least);
        EXPECT_EQ(all->front().choice.algorithm, choice.algorithm);
        EXPECT_EQ(all->front().choice.protocol, choice.protocol);
        EXPECT_EQ(all->front().choice.channels, choice.channels);
        EXPECT_TRUE(seen.contains({Algorithm::OneShot, Protocol::LL, 16}));
        EXPECT_TRUE(seen.contains({Algorithm::OneShot, Protocol::Simple, 1}));
        EXPECT_NE(reasonOnDevice(question, *all), "");
      }
    }
  }
}

// As calls grow protocols follow each other, each has its sizes, and more blocks work.
TEST(OnGpus, ProtocolsAndChannelsGrowWithTheCall) {
  for (const int kind : {pealStatAllReduce, pealStatReduceScatter, pealStatAllGather}) {
    for (const int size : {4, 8, 32}) {
      DeviceQuestion question = questionOf(kind, 0, size);
      question.call.forced = kind == pealStatAllReduce ? "two_shot" : "one_shot";
      std::vector<Protocol> order;
      int channels = 1;
      for (double bytes = 64; bytes < 1 << 30; bytes *= 1.25) {
        question.call.bytes = static_cast<size_t>(bytes) / 16 * 16;
        const Choice choice = chosen(question);
        if (order.empty() || order.back() != choice.protocol) {
          order.push_back(choice.protocol);
          channels = 1;
        }
        EXPECT_GE(choice.channels, channels) << kind << " " << bytes;
        channels = choice.channels;
      }
      EXPECT_EQ(order, (std::vector{Protocol::LL, Protocol::LL128, Protocol::Simple})) << kind << " " << size;
      EXPECT_EQ(channels, 16);
    }
  }
}

TEST(OnGpus, OneShotIsForSmallAllReduces) {
  for (const GpuPath path : kPaths) {
    const LinkTable links = linksOn(path);
    bool two = false;
    for (size_t bytes = 64; bytes <= size_t{1} << 30; bytes *= 2) {
      const Algorithm algorithm = chosen(questionOf(pealStatAllReduce, bytes, 8, links, path)).algorithm;
      EXPECT_EQ(algorithm == Algorithm::TwoShot, two || algorithm == Algorithm::TwoShot) << bytes;
      two = algorithm == Algorithm::TwoShot;
      EXPECT_TRUE(bytes > 64 || !two);
    }
    EXPECT_TRUE(two);
  }
}

// Where LL's second half of the wire costs more than a step of the next protocol saves.
size_t leastBytesNotByLl(const LinkTable& links) {
  DeviceQuestion question = questionOf(pealStatAllGather, 0, 8, links);
  for (question.call.bytes = 64;; question.call.bytes += question.call.bytes / 64 / 16 * 16 + 16) {
    if (chosen(question).protocol != Protocol::LL) {
      return question.call.bytes;
    }
  }
}

TEST(OnGpus, DearerBytesEndLlEarlierAndDearerStepsLater) {
  LinkTable links = kNvlink;
  links.gpu.blockUs = 0;  // so all channels work, and the link is what counts
  const double plain = static_cast<double>(leastBytesNotByLl(links));
  LinkTable slow = links;
  slow.gpu.linkUsPerByte *= 2;
  slow.gpu.blockUsPerByte *= 2;
  EXPECT_NEAR(static_cast<double>(leastBytesNotByLl(slow)) / plain, 0.5, 0.05);
  LinkTable far = links;
  far.gpu.llUs *= 2;
  far.gpu.ll128Us *= 2;
  far.gpu.simpleUs *= 2;
  EXPECT_NEAR(static_cast<double>(leastBytesNotByLl(far)) / plain, 2, 0.2);
}

// A link is as fast as it is, however many blocks share it; below that each block counts.
TEST(OnGpus, ChannelsShareALink) {
  const auto us = [](int channels) {
    return linksFor(kNvlink, Protocol::Simple, channels, 1).inside.usPerByte;
  };
  EXPECT_DOUBLE_EQ(us(1), kNvlink.gpu.blockUsPerByte);
  EXPECT_DOUBLE_EQ(us(4), kNvlink.gpu.blockUsPerByte / 4);
  EXPECT_DOUBLE_EQ(us(32), kNvlink.gpu.linkUsPerByte);
  EXPECT_DOUBLE_EQ(linksFor(kNvlink, Protocol::LL, 32, 1).inside.usPerByte, 2 * kNvlink.gpu.linkUsPerByte);
  EXPECT_DOUBLE_EQ(linksFor(kNvlink, Protocol::LL128, 32, 1).inside.usPerByte,
                   16.0 / 15 * kNvlink.gpu.linkUsPerByte);
  EXPECT_EQ(chosen(questionOf(pealStatAllGather, size_t{1} << 30)).channels, 16);
  // One block fills PCIe 3.0, and the next have little to do.
  const LinkTable pcie = linksOn(GpuPath::Pcie);
  constexpr size_t kBytes = size_t{256} << 10;
  EXPECT_LT(chosen(questionOf(pealStatAllGather, kBytes, 8, pcie, GpuPath::Pcie)).channels,
            chosen(questionOf(pealStatAllGather, kBytes)).channels);
}

// D4: nothing but what is forced, or nodes, makes a sum round more than once.
TEST(OnGpus, OneNodeSumsInTheOrderOfRanks) {
  for (const int kind : {pealStatAllReduce, pealStatReduceScatter, pealStatReduce}) {
    for (size_t bytes = 16; bytes <= size_t{1} << 30; bytes *= 4) {
      for (const char* protocol : {"auto", "simple", "ll", "ll128"}) {
        DeviceQuestion question = questionOf(kind, bytes);
        question.forced = protocol;
        const Algorithm algorithm = chosen(question).algorithm;
        EXPECT_TRUE(algorithm == Algorithm::OneShot || algorithm == Algorithm::TwoShot)
            << kind << " " << bytes;
      }
    }
  }
  EXPECT_EQ(chosen(questionOf(pealStatBroadcast, size_t{1} << 30)).algorithm, Algorithm::Ring);
  DeviceQuestion forced = questionOf(pealStatAllReduce, 4096);
  forced.call.forced = "ring";
  EXPECT_EQ(chosen(forced).algorithm, Algorithm::Ring);
}

TEST(OnGpus, AnIllegalProtocolListsTheLegalOnes) {
  const LinkTable pcie = linksOn(GpuPath::Pcie);
  DeviceQuestion torn = questionOf(pealStatAllReduce, 4096, 8, pcie, GpuPath::Pcie);
  torn.forced = "ll128";
  expectRefused(torn,
                "PEAL_PROTOCOL=ll128 is not legal here: some ranks reach each other by a path that may tear");
  expectRefused(torn, "legal are: simple, ll. To let");
  DeviceQuestion tree = questionOf(pealStatAllReduce, 4096);
  tree.call.forced = "tree";
  EXPECT_EQ(chosen(tree).algorithm, Algorithm::Tree);
  EXPECT_EQ(chosen(tree).protocol, Protocol::Simple);
  tree.forced = "ll";
  expectRefused(tree, "PEAL_PROTOCOL=ll is not legal with PEAL_ALGO=tree");
  expectRefused(tree, "legal are: simple. To let");
  const Placement pairs(Placement::byNode({2, 2}));
  DeviceQuestion nodes = questionOver(pairs, pealStatAllReduce, 4096);
  nodes.forced = "ll128";
  expectRefused(nodes, "some ranks are on other nodes");
  expectRefused(nodes, "legal are: simple. To let");
}

TEST(OnGpus, TheRingBetweenNodesIsRefused) {
  const Placement pairs(Placement::byNode({2, 2}));
  DeviceQuestion question = questionOver(pairs, pealStatAllReduce, 4096);
  question.call.forced = "hierarchical_ring";
  expectRefused(question,
                "is not legal for this operation on GPUs; legal are: hierarchical, tree, one_shot, two_shot, "
                "ring.");
}

// Long calls cross the nodes' shared link once, and what is not summed in the order of ranks is not taken
// where that was asked for.
TEST(OnGpus, NodesShareALink) {
  const Placement nodes(Placement::byNode({4, 4}));
  DeviceQuestion question = questionOver(nodes, pealStatAllReduce, size_t{16} << 20);
  EXPECT_EQ(chosen(question).algorithm, Algorithm::Hierarchical);
  EXPECT_EQ(chosen(question).protocol, Protocol::Simple);
  EXPECT_EQ(chosen(question).ahead, 1);
  question.call.deterministic = true;
  EXPECT_EQ(chosen(question).algorithm, Algorithm::TwoShot);
  question.call.kind = pealStatAllGather;  // adds nothing
  EXPECT_EQ(chosen(question).algorithm, Algorithm::Hierarchical);
  // The fused optimizer step takes the algorithm of the reduce-scatter, whose protocol it does not force.
  question = questionOver(nodes, pealStatReduceScatter, 0);
  for (size_t bytes = 16; bytes <= size_t{1} << 28; bytes *= 4) {
    question.call.bytes = bytes;
    question.forced = "auto";
    const Algorithm algorithm = chosen(question).algorithm;
    question.forced = "simple";
    EXPECT_EQ(chosen(question).algorithm, algorithm);
  }
}

TEST(OnGpus, TheFilesCostsComeBeforeThePaths) {
  GpuCost said;
  said.llUs = 7;
  said.linkUsPerByte = 0;
  const GpuCost made = gpuCostOn(GpuPath::Pcie, said), assumed = assumedGpuCost(GpuPath::Pcie);
  EXPECT_EQ(made.llUs, 7);
  EXPECT_EQ(made.linkUsPerByte, 0);
  EXPECT_EQ(made.simpleUs, assumed.simpleUs);
  EXPECT_EQ(made.launchUs, assumed.launchUs);
  for (const GpuPath path : kPaths) {
    const GpuCost cost = assumedGpuCost(path);
    EXPECT_LT(cost.llUs, cost.ll128Us);
    EXPECT_LT(cost.ll128Us, cost.simpleUs);
    EXPECT_GT(cost.launchUs * cost.blockUs * cost.llUs * cost.blockUsPerByte * cost.linkUsPerByte, 0);
  }
}

}  // namespace
}  // namespace peal::test::gpus

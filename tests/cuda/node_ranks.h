// Ranks on simulated GPUs of several nodes, through the public API: each rank is a process, PEAL_HOST_ID says
// which node it is on, and between nodes its proxy sends over UCX (TCP on this machine), or over what
// PEAL_TRANSPORT says (tests/rdma: verbs).
#pragma once
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "lib/tuner/links.h"
#include "tests/cuda/gpu_ranks.h"
#include "transports/ucx/ucx.h"

namespace peal::test {

// Which node each rank is on.
using Nodes = std::vector<int>;

inline std::string transportBetweenNodes() {
  static const char* const wanted = std::getenv("PEAL_TRANSPORT");
  return wanted != nullptr ? wanted : "tcp";
}
inline Environment nodeGpu() { return with(smallGpu(), {{"PEAL_TRANSPORT", transportBetweenNodes()}}); }

// The k-th rank of a node has its device k.
inline int numberOnNode(const Nodes& nodes, int rank) {
  int device = 0;
  for (int other = 0; other < rank; ++other) {
    device += nodes[static_cast<size_t>(other)] == nodes[static_cast<size_t>(rank)] ? 1 : 0;
  }
  return device;
}

// What a body sees of its rank.
struct NodeRank {
  int rank;
  int size;
  int device;
  pealComm_t gpu;   // the body may end it and set it to nullptr
  pealComm_t host;  // the same ranks on host memory; nullptr if the test wants none
  const Child& child;
};
using NodeBody = std::function<void(NodeRank&)>;

struct NodeTest {
  Nodes nodes;
  Environment environment = nodeGpu();
  bool withHost = true;
  cudasim::Machine machine{};
};

// Where two communicators' ranks meet.
struct NodeMeetings {
  SharedValue<Meeting> gpu;
  SharedValue<Meeting> host;
};

// What a process of the test does.
inline int runNodeRank(const NodeTest& test, NodeMeetings& meetings, const Child& child,
                       const NodeBody& body) {
  const int size = static_cast<int>(test.nodes.size());
  const int rank = child.index();
  enter(with(test.environment,
             {{"PEAL_HOST_ID", fmt::format("node {}", test.nodes[static_cast<size_t>(rank)])}}),
        test.machine);
  NodeRank self{rank, size, numberOnNode(test.nodes, rank), nullptr, nullptr, child};
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  config.device = cudasim::deviceOf(self.device);
  pealConfig_t onHostMemory = PEAL_CONFIG_INITIALIZER;
  onHostMemory.device = PEAL_DEVICE_HOST;
  if (meetings.gpu->join(&self.gpu, rank, size, &config) != pealSuccess ||
      (test.withHost && meetings.host->join(&self.host, rank, size, &onHostMemory) != pealSuccess)) {
    child.say(pealGetLastError(nullptr));
    return 2;
  }
  body(self);
  if (self.gpu != nullptr) {
    PEAL_EXPECT_OK(pealCommDestroy(self.gpu));
  }
  if (self.host != nullptr) {
    PEAL_EXPECT_OK(pealCommDestroy(self.host));
  }
  expectNothingAlive();
  return 0;
}

// Costs of links for the host's tuner, so that its communicators need not measure with these small slots.
class LinkCosts {
 public:
  LinkCosts() : path_(::testing::TempDir() + fmt::format("peal-links-{}", getpid())) {
    std::ofstream(path_) << formatLinks(assumedLinks());
  }
  LinkCosts(const LinkCosts&) = delete;
  LinkCosts& operator=(const LinkCosts&) = delete;
  ~LinkCosts() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs body on every rank; all must succeed.
inline void runOnNodes(NodeTest test, const NodeBody& body) {
  const LinkCosts costs;
  test.environment["PEAL_TUNER_FILE"] = costs.path();
  NodeMeetings meetings;
  expectAllSucceeded(runProcesses(static_cast<int>(test.nodes.size()), kHangs, [&](const Child& child) {
    return runNodeRank(test, meetings, child, body);
  }));
}

// Why no UCX can be opened; empty: one can, or it is not needed. Asked in a child, as ranks must be forked
// from a fresh process.
inline const std::string& whyNoUcx() {
  static const std::string why = []() -> std::string {
    if (transportBetweenNodes() != "ucx") {
      return "";
    }
    const std::vector<ChildResult> asked = runProcesses(1, kHangs, [](const Child& child) {
      const UcxSupport support = probeUcx();
      child.say(support.available ? "" : support.reason);
      return 0;
    });
    return asked[0].message;
  }();
  return why;
}
#define PEAL_NEEDS_UCX()                                                      \
  do {                                                                        \
    if (!whyNoUcx().empty()) {                                                \
      GTEST_SKIP() << "nothing joins the nodes of this test: " << whyNoUcx(); \
    }                                                                         \
  } while (false)

}  // namespace peal::test

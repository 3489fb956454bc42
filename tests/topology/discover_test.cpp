// Discovery as a whole: a made-up machine, and this one.
#include "lib/topology/discover.h"

#include <gtest/gtest.h>

#include "lib/topology/described.h"
#include "tests/topology/system_folder.h"

namespace peal::test {
namespace {

TEST(Discover, AMadeUpMachine) {
  if (const HwlocSupport hwloc = probeHwloc(); !hwloc.available) {
    GTEST_SKIP() << hwloc.reason;
  }
  const SystemFolder system;
  system.interface("eth0", 2, system.pci("pci0000:00/0000:00:03.0", 1, "ice"), "up", "100000");
  system.interface("eth1", 3, system.pci("pci0000:00/0000:00:04.0", 1, "ice"), "down", "");
  const Result<Topology> found = discoverTopology(
      "host",
      {.synthetic = "package:2 numa:1 core:2 pu:1", .allowed = parseCpuSet("0,3"), .roots = system.roots()},
      {{"lo", 1, true, true, {"127.0.0.1/8"}},
       {"eth0", 2, true, false, {"10.0.0.1/24"}},
       {"eth1", 3, true, false, {}}},
      {});
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_EQ(found->nodes.size(), 1u);
  const MachineNode& node = found->nodes.front();
  EXPECT_EQ(node.name, "host");
  EXPECT_EQ(node.allowedCpus.text(), "0,3");
  ASSERT_EQ(node.nics.size(), 3u);
  EXPECT_EQ(node.nics[0].idle, "reaches this machine only");
  EXPECT_EQ(node.nics[1].idle, "");
  EXPECT_EQ(node.nics[1].place.numaNode, 1);
  EXPECT_EQ(node.nics[2].idle, "down: no carrier (cable, switch or peer)");
}

TEST(Discover, APlaceWithoutANumaNodeIsOnTheOnlyOne) {
  if (const HwlocSupport hwloc = probeHwloc(); !hwloc.available) {
    GTEST_SKIP() << hwloc.reason;
  }
  const SystemFolder system;
  system.interface("eth0", 2, system.pci("pci0000:00/0000:00:03.0", -1), "up", "1000");
  for (const auto& [machine, numaNode] : {std::pair{"numa:1 core:2 pu:1", 0}, {"numa:2 core:2 pu:1", -1}}) {
    const Result<Topology> found = discoverTopology("host", {.synthetic = machine, .roots = system.roots()},
                                                    {{"eth0", 2, true, false, {}}}, {});
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->nodes.front().nics.front().place.numaNode, numaNode) << machine;
  }
}

TEST(Discover, AllMemoryRemoteIsNoted) {
  const SystemFolder system;
  const std::string nodes = "/sys/devices/system/node";
  system.write(nodes + "/online", "0-1");
  system.write(nodes + "/node0/cpulist", "0-1");
  system.write(nodes + "/node1/cpulist", "2-3");
  system.write("/proc/self/status", "Mems_allowed_list:\t1");
  MachineNode node;
  discoverProcessorsBySys({.allowed = parseCpuSet("0-1"), .roots = system.roots()}, node);
  noteRemoteMemory(node);
  ASSERT_EQ(node.notes.size(), 1u);
  EXPECT_EQ(node.notes[0],
            "the allowed processors are on NUMA node 0, whose memory is not allowed: all memory is remote");
}

TEST(Discover, ThisMachineRoundTrips) {
  const Result<Topology> found = currentTopology();
  ASSERT_TRUE(found) << found.error().message;
  const MachineNode& node = found->nodes.at(0);
  EXPECT_EQ(node.allowedCpus, allowedCpuSet());
  EXPECT_FALSE(node.nics.empty());
  Result<Topology> read = parseTopology(topologyJson(*found), "text");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, *found);
  assignRails(*read);
  EXPECT_EQ(*read, *found) << "rails of a described topology stay";
}

TEST(Discover, ADescribedFileTakesItsPlace) {
  const SystemFolder folder;
  folder.write("/sys/described.json", R"({"format": "peal-topology-1",
    "nodes": [{"name": "dgx", "count": 2, "gpus": [{}], "nics": [{"rdma": "mlx5_0", "speedMbps": 400000}]}]})");
  const Result<Topology> found = currentTopology(folder.roots().sys + "/described.json");
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->nodes.at(0).name, "dgx");
  EXPECT_EQ(found->nodes.at(0).nics.at(0).gpus, std::vector<int>{0}) << "with rails";
  EXPECT_FALSE(currentTopology(folder.roots().sys + "/none.json"));
}

}  // namespace
}  // namespace peal::test

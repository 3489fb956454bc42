// Rails: the nearest NIC serves a GPU, evenly shared, and idle NICs say why.
#include "lib/topology/rails.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace peal::test {
namespace {

using Gpus = std::vector<int>;

Nic nic(const std::string& interface, const std::string& rdma, const PciPlace& place,
        int64_t speedMbps = 400000) {
  Nic one;
  one.interface = interface;
  one.rdma = rdma;
  one.port = rdma.empty() ? 0 : 1;
  one.place = place;
  one.speedMbps = speedMbps;
  one.addresses = {"10.0.0.1/16"};
  return one;
}

Gpu gpu(int device, const PciPlace& place) {
  Gpu one;
  one.device = device;
  one.place = place;
  return one;
}

// Four PCI switches, two per socket, each with two GPUs and two NICs. `nics` of eight are there.
Topology dgx(const std::vector<int>& nics) {
  Topology topology;
  MachineNode& node = topology.nodes.emplace_back();
  const auto place = [](int position, int slot) {
    const int branch = position / 2;
    return PciPlace{fmt::format("0000:{:x}{:x}:00.0", branch + 1, slot),
                    {fmt::format("pci0000:{:x}0", branch + 1), fmt::format("0000:{:x}0:01.0", branch + 1)},
                    position / 4};
  };
  for (int i = 0; i < 8; ++i) {
    node.gpus.push_back(gpu(i, place(i, 2 + i % 2)));
  }
  for (const int i : nics) {
    node.nics.push_back(nic("", fmt::format("mlx5_{}", i), place(i, 4 + i % 2)));
  }
  return topology;
}

std::vector<Gpus> served(const Topology& topology) {
  std::vector<Gpus> all;
  for (const Nic& one : topology.nodes.front().nics) {
    all.push_back(one.gpus);
  }
  return all;
}

TEST(Rails, EightGpusAndEightNicsPairUpOnTheirSwitches) {
  Topology topology = dgx({0, 1, 2, 3, 4, 5, 6, 7});
  assignRails(topology);
  EXPECT_EQ(served(topology), (std::vector<Gpus>{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
}

TEST(Rails, TheOrderOfNicsDoesNotMatter) {
  Topology topology = dgx({6, 4, 2, 0, 7, 5, 3, 1});
  assignRails(topology);
  EXPECT_EQ(served(topology), (std::vector<Gpus>{{6}, {4}, {2}, {0}, {7}, {5}, {3}, {1}}));
}

TEST(Rails, TwoNicsShareEightGpusBySocket) {
  Topology topology = dgx({1, 6});
  assignRails(topology);
  EXPECT_EQ(served(topology), (std::vector<Gpus>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(Rails, TwoNicsOnOneSocketShareEvenly) {
  Topology topology = dgx({0, 2});
  assignRails(topology);
  const std::vector<Gpus> all = served(topology);
  EXPECT_EQ(all[0].size(), 4u);
  EXPECT_EQ(all[1].size(), 4u);
  EXPECT_EQ(Gpus(all[0].begin(), all[0].begin() + 2), (Gpus{0, 1})) << "those of its own switch";
  EXPECT_EQ(Gpus(all[1].begin(), all[1].begin() + 2), (Gpus{2, 3}));
}

TEST(Rails, WithoutPlacesTheySpreadEvenly) {
  Topology topology;
  MachineNode& node = topology.nodes.emplace_back();
  for (int i = 0; i < 5; ++i) {
    node.gpus.push_back(gpu(i, {}));
  }
  for (const char* name : {"a", "b", "c", "d"}) {
    node.nics.push_back(nic(name, "", {}));
  }
  assignRails(topology);
  EXPECT_EQ(served(topology), (std::vector<Gpus>{{0, 4}, {1}, {2}, {3}}));
}

TEST(Rails, MoreNicsThanGpusServeTheNearest) {
  Topology topology = dgx({0, 1, 2, 3, 4, 5, 6, 7});
  std::vector<Gpu>& gpus = topology.nodes.front().gpus;
  gpus = {gpus[0], gpus[4]};
  assignRails(topology);
  const std::vector<Gpus> all = served(topology);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(all[i], Gpus{i < 4 ? 0 : 4}) << "NIC " << i;
  }
}

TEST(Rails, IdleNicsSayWhy) {
  Topology topology = dgx({0, 1});
  std::vector<Nic>& nics = topology.nodes.front().nics;
  const auto add = [&](Nic one, NicKind kind, const std::string& state) {
    one.kind = kind;
    one.state = state;
    nics.push_back(one);
  };
  add(nic("lo", "", {}, -1), NicKind::Loopback, "up");
  add(nic("ens3", "mlx5_2", {}, 100000), NicKind::Ethernet, "up");
  add(nic("eno1", "", {}, 1000), NicKind::Ethernet, "up");
  add(nic("", "mlx5_3", {}), NicKind::InfiniBand, "down: port DOWN, physically Disabled");
  add(nic("docker0", "", {}, -1), NicKind::Virtual, "up");
  add(nic("ens9", "mlx5_9", {}), NicKind::Ethernet, "up");
  add(nic("ib8", "mlx5_8", {}, -1), NicKind::InfiniBand, "up");
  assignRails(topology, {"^ens9", "^=mlx5_7"});
  const auto why = [&](const char* name) {
    return std::find_if(nics.begin(), nics.end(), [&](const Nic& one) { return one.name() == name; })->idle;
  };
  EXPECT_EQ(why("lo"), "reaches this machine only");
  EXPECT_EQ(why("ens3"), "slower: 100 Gbit/s of mlx5_0's 400 Gbit/s");
  EXPECT_EQ(why("eno1"), "has no RDMA, and mlx5_0 has");
  EXPECT_EQ(why("mlx5_3"), "down: port DOWN, physically Disabled");
  EXPECT_EQ(why("docker0"), "has no RDMA, and mlx5_0 has");
  EXPECT_EQ(why("ens9"), "excluded by PEAL_INTERFACE=\"^ens9\"");
  EXPECT_EQ(why("ib8"), "does not say its speed, and mlx5_0 has 400 Gbit/s");
  EXPECT_EQ(why("mlx5_0"), "");
  EXPECT_EQ(railsOf(topology.nodes.front()), (std::vector<size_t>{0, 1}));
}

TEST(Rails, RdmaDevicesAndSubnetsChosenByConfiguration) {
  Topology topology = dgx({0, 1});
  topology.nodes.front().nics[0].interface = "ib0";
  topology.nodes.front().nics[1].interface = "ib1";
  topology.nodes.front().nics[1].addresses = {"192.168.3.4/24"};
  Topology bySubnet = topology;
  assignRails(topology, {"", "mlx5_1"});
  EXPECT_EQ(topology.nodes.front().nics[0].idle, "excluded by PEAL_IB_DEVICES=\"mlx5_1\"");
  EXPECT_EQ(topology.nodes.front().nics[1].gpus.size(), 8u);
  Topology byPort = bySubnet;
  byPort.nodes.front().nics[1].port = 2;
  assignRails(byPort, {"", "^mlx5_:2"});
  EXPECT_EQ(byPort.nodes.front().nics[0].idle, "");
  EXPECT_EQ(byPort.nodes.front().nics[1].idle, "excluded by PEAL_IB_DEVICES=\"^mlx5_:2\"");
  assignRails(bySubnet, {"192.168.0.0/16", ""});
  EXPECT_EQ(bySubnet.nodes.front().nics[0].idle, "excluded by PEAL_INTERFACE=\"192.168.0.0/16\"");
  EXPECT_EQ(bySubnet.nodes.front().nics[1].idle, "");
}

TEST(Rails, EthernetAloneAndVirtualAlone) {
  Topology topology;
  MachineNode& node = topology.nodes.emplace_back();
  node.nics = {nic("eth0", "", {"0000:01:00.0", {}, 0}, 25000), nic("veth3", "", {}, 10000),
               nic("eth1", "", {})};
  node.nics[1].kind = NicKind::Virtual;
  node.nics[2].addresses.clear();
  assignRails(topology);
  EXPECT_EQ(node.nics[0].idle, "");
  EXPECT_EQ(node.nics[1].idle, "is virtual, and eth0 is not");
  EXPECT_EQ(node.nics[2].idle, "has no IP address");

  Topology container;
  container.nodes.emplace_back().nics = {node.nics[1]};
  container.nodes.front().nics[0].idle.clear();
  assignRails(container);
  EXPECT_EQ(container.nodes.front().nics[0].idle, "") << "it is all that there is";
}

TEST(Rails, AnotherSubnetReachesNobody) {
  Topology topology;
  for (const char* third : {"1", "2"}) {
    MachineNode& node = topology.nodes.emplace_back();
    node.nics = {nic("eth0", "", {}), nic("eth1", "", {})};
    node.nics[0].addresses = {fmt::format("10.0.0.{}/24", third)};
    node.nics[1].addresses = {fmt::format("192.168.{}.1/24", third)};
  }
  assignRails(topology);
  EXPECT_EQ(topology.nodes[0].nics[0].idle, "");
  EXPECT_EQ(topology.nodes[0].nics[1].idle, "another subnet: no NIC of another node is in 192.168.1.1/24");
  EXPECT_EQ(topology.nodes[1].nics[1].idle, "another subnet: no NIC of another node is in 192.168.2.1/24");
}

TEST(Rails, WhatADescriptionStatesIsKept) {
  Topology topology = dgx({0, 1, 2});
  std::vector<Nic>& nics = topology.nodes.front().nics;
  nics[0].idle = "broken cable";
  assignRails(topology);
  EXPECT_EQ(nics[0].idle, "broken cable");
  EXPECT_EQ(nics[1].gpus.size() + nics[2].gpus.size(), 8u);

  Topology stated = dgx({0, 1});
  stated.nodes.front().nics[0].gpus = {7};
  assignRails(stated);
  EXPECT_EQ(stated.nodes.front().nics[0].gpus, Gpus{7});
  EXPECT_EQ(stated.nodes.front().nics[1].idle, "its description gives it no GPU");
}

TEST(Rails, AssigningAgainChangesNothing) {
  for (const std::vector<int>& nics : {std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}, {1, 6}, {}}) {
    Topology topology = dgx(nics);
    topology.nodes.front().nics.push_back(nic("eno1", "", {}, 1000));
    assignRails(topology);
    const Topology once = topology;
    assignRails(topology);
    EXPECT_EQ(topology, once);
  }
}

TEST(Rails, SpeedInBytes) {
  EXPECT_EQ(nicBytesPerSecond(nic("a", "", {}, 400000)), 50e9);
  EXPECT_EQ(nicBytesPerSecond(nic("a", "", {}, -1)), 0);
}

}  // namespace
}  // namespace peal::test

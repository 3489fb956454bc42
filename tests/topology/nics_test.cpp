// Network cards as /sys tells them: places, states, speeds, and the RDMA ports that belong to interfaces.
#include "lib/topology/nics.h"

#include <gtest/gtest.h>

#include "lib/topology/pci.h"
#include "tests/topology/system_folder.h"

namespace peal::test {
namespace {

using Bridges = std::vector<std::string>;

TEST(Nics, AnEthernetCardWithItsPlaceDriverAndSpeed) {
  const SystemFolder system;
  system.interface("eth0", 2, system.pci("pci0000:00/0000:00:01.0/0000:01:00.0", 1, "ice"), "up", "100000");
  const std::vector<Nic> nics = discoverNics({{"eth0", 2, true, false, {"10.0.0.1/24"}}}, system.roots());
  ASSERT_EQ(nics.size(), 1u);
  EXPECT_EQ(nics[0].interface, "eth0");
  EXPECT_EQ(nics[0].kind, NicKind::Ethernet);
  EXPECT_EQ(nics[0].speedMbps, 100000);
  EXPECT_EQ(nics[0].state, "up");
  EXPECT_EQ(nics[0].driver, "ice");
  EXPECT_EQ(nics[0].place, (PciPlace{"0000:01:00.0", {"pci0000:00", "0000:00:01.0"}, 1}));
  EXPECT_EQ(nics[0].addresses, Bridges{"10.0.0.1/24"});
  EXPECT_EQ(nics[0].rdma, "");
}

TEST(Nics, AVirtioCardHangsBelowItsPciDevice) {
  const SystemFolder system;
  system.pci("pci0000:00/0000:00:03.0", -1);
  system.interface("eth0", 2, "/sys/devices/pci0000:00/0000:00:03.0/virtio2", "up", "-1");
  const std::vector<Nic> nics = discoverNics({{"eth0", 2, true, false, {}}}, system.roots());
  EXPECT_EQ(nics.at(0).place, (PciPlace{"0000:00:03.0", {"pci0000:00"}, -1}));
  EXPECT_EQ(nics.at(0).speedMbps, -1);
  EXPECT_EQ(nics.at(0).kind, NicKind::Ethernet);
}

TEST(Nics, StatesSayWhatIsWrong) {
  const SystemFolder system;
  system.interface("off", 2, system.pci("pci0000:00/0000:00:02.0", 0), "down", "");
  system.interface("cut", 3, system.pci("pci0000:00/0000:00:03.0", 0), "down", "");
  system.interface("tun0", 4, "", "unknown", "10");
  const std::vector<Nic> nics =
      discoverNics({{"off", 2, false, false, {}}, {"cut", 3, true, false, {}}, {"tun0", 4, true, false, {}}},
                   system.roots());
  EXPECT_EQ(nics.at(0).state, "down: switched off (ip link set off up)");
  EXPECT_EQ(nics.at(1).state, "down: no carrier (cable, switch or peer)");
  EXPECT_EQ(nics.at(2).state, "up") << "drivers that do not report a state";
  EXPECT_EQ(nics.at(2).kind, NicKind::Virtual);
}

TEST(Nics, AnotherNamespacesInterfaceOfTheSameNameIsNotThisOne) {
  const SystemFolder system;
  system.interface("eth0", 2, system.pci("pci0000:00/0000:00:02.0", 0), "down", "100000");
  const std::vector<Nic> nics = discoverNics({{"eth0", 7, true, false, {"10.0.0.1/24"}}}, system.roots());
  ASSERT_EQ(nics.size(), 1u);
  EXPECT_EQ(nics[0].place, PciPlace{});
  EXPECT_EQ(nics[0].state, "up");
  EXPECT_EQ(nics[0].speedMbps, -1);
}

TEST(Nics, AnRdmaPortBelongsToItsInterface) {
  const SystemFolder system;
  const std::string device = system.pci("pci0000:10/0000:10:01.0/0000:11:00.0", 0, "mlx5_core");
  system.interface("ens1", 5, device, "up", "25000");
  system.rdma("mlx5_0", device, "4: ACTIVE", "200 Gb/sec (4X HDR)", "Ethernet");
  const std::vector<Nic> nics = discoverNics({{"ens1", 5, true, false, {"10.0.0.1/24"}}}, system.roots());
  ASSERT_EQ(nics.size(), 1u);
  EXPECT_EQ(nics[0].interface, "ens1");
  EXPECT_EQ(nics[0].rdma, "mlx5_0");
  EXPECT_EQ(nics[0].port, 1);
  EXPECT_EQ(nics[0].speedMbps, 200000) << "the port's rate, not the interface's";
  EXPECT_EQ(nics[0].state, "up");
}

TEST(Nics, RdmaPortsWithoutAnInterfaceStandAlone) {
  const SystemFolder system;
  const std::string device = system.pci("pci0000:10/0000:11:00.0", 1, "mlx5_core");
  system.rdma("mlx5_0", device, "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand");
  system.rdma("mlx5_0", device, "2: INIT", "400 Gb/sec (4X NDR)", "InfiniBand", 2);
  system.rdma("mlx5_1", system.pci("pci0000:10/0000:12:00.0", 1), "1: DOWN", "2.5 Gb/sec (1X SDR)",
              "InfiniBand");
  const std::vector<Nic> nics = discoverNics({}, system.roots());
  ASSERT_EQ(nics.size(), 3u);
  EXPECT_EQ(nics[0].name(), "mlx5_0");
  EXPECT_EQ(nics[0].kind, NicKind::InfiniBand);
  EXPECT_EQ(nics[0].speedMbps, 400000);
  EXPECT_EQ(nics[0].place, (PciPlace{"0000:11:00.0", {"pci0000:10"}, 1}));
  EXPECT_EQ(nics[1].port, 2);
  EXPECT_EQ(nics[1].state, "down: the port waits for a subnet manager (INIT)");
  EXPECT_EQ(nics[2].state, "down: port DOWN, physically Disabled");
  EXPECT_EQ(nics[2].speedMbps, 2500);
}

TEST(Nics, SoftRoceNamesItsInterface) {
  const SystemFolder system;
  system.interface("veth0", 3, "", "up", "10000");
  system.rdma("rxe0", "", "4: ACTIVE", "2.5 Gb/sec (1X SDR)", "Ethernet");
  system.write("/sys/class/infiniband/rxe0/parent", "veth0");
  const std::vector<Nic> nics = discoverNics({{"veth0", 3, true, false, {}}}, system.roots());
  ASSERT_EQ(nics.size(), 1u);
  EXPECT_EQ(nics[0].rdma, "rxe0");
  EXPECT_EQ(nics[0].kind, NicKind::Virtual);
}

TEST(Nics, ThisNamespaceHasALoopback) {
  const Result<std::vector<LiveInterface>> live = liveInterfaces();
  ASSERT_TRUE(live) << live.error().message;
  const std::vector<Nic> nics = discoverNics(*live);
  EXPECT_GE(
      std::count_if(nics.begin(), nics.end(), [](const Nic& nic) { return nic.kind == NicKind::Loopback; }),
      1);
}

TEST(Subnets, HoldAddressesOfTheirFamily) {
  EXPECT_TRUE(inSubnet("10.1.2.3/24", "10.0.0.0/8"));
  EXPECT_TRUE(inSubnet("10.1.2.3/24", "10.1.2.200/24"));
  EXPECT_FALSE(inSubnet("10.1.3.3/24", "10.1.2.0/24"));
  EXPECT_TRUE(inSubnet("10.1.3.3/24", "10.1.2.0/23"));
  EXPECT_TRUE(inSubnet("fd00::1/64", "fd00::/64"));
  EXPECT_FALSE(inSubnet("fd00:1::1/64", "fd00::/32"));
  EXPECT_FALSE(inSubnet("10.1.2.3/24", "::/0"));
  for (const char* wrong : {"eth0", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/8x", ""}) {
    EXPECT_FALSE(inSubnet("10.1.2.3/24", wrong)) << wrong;
  }
}

TEST(Pci, DistanceRanksWhatIsShared) {
  const PciPlace gpu{"0000:02:00.0", {"pci0000:00", "0000:00:01.0", "0000:01:00.0"}, 0};
  const PciPlace sameBridge{"0000:03:00.0", {"pci0000:00", "0000:00:01.0", "0000:01:00.0"}, 0};
  const PciPlace upperBridge{"0000:04:00.0", {"pci0000:00", "0000:00:01.0"}, 0};
  const PciPlace otherPort{"0000:05:00.0", {"pci0000:00", "0000:00:02.0"}, 0};
  const PciPlace otherRoot{"0000:80:00.0", {"pci0000:80"}, 0};
  const PciPlace otherNuma{"0000:c0:00.0", {"pci0000:c0"}, 1};
  EXPECT_EQ(distance(gpu, sameBridge), (Distance{Nearness::SamePciBridge, 0}));
  EXPECT_EQ(distance(gpu, upperBridge), (Distance{Nearness::SamePciBridge, 1}));
  EXPECT_EQ(distance(gpu, otherPort), (Distance{Nearness::SameHostBridge, 3}));
  EXPECT_EQ(distance(gpu, otherRoot), (Distance{Nearness::SameNumaNode, 0}));
  EXPECT_EQ(distance(gpu, otherNuma), (Distance{Nearness::OtherNumaNode, 0}));
  EXPECT_EQ(distance(gpu, PciPlace{}), (Distance{Nearness::Unknown, 0}));
  EXPECT_LT(distance(gpu, sameBridge), distance(gpu, upperBridge));
  EXPECT_LT(distance(gpu, otherRoot), distance(gpu, otherNuma));
  EXPECT_LT(distance(gpu, otherNuma), distance(gpu, PciPlace{}));
}

TEST(Pci, AddressesInAnyCaseAndWideDomains) {
  const SystemFolder system;
  system.pci("pci0000:c0/0000:c0:01.1/0000:c1:00.0", 3);
  EXPECT_EQ(pciPlaceOfAddress("0000:C1:00.0", system.roots()),
            (PciPlace{"0000:c1:00.0", {"pci0000:c0", "0000:c0:01.1"}, 3}));
  EXPECT_EQ(pciPlaceOfAddress("0000:99:00.0", system.roots()), (PciPlace{"0000:99:00.0", {}, -1}));
  EXPECT_TRUE(isPciAddress("10000:e1:00.0"));
  EXPECT_FALSE(isPciAddress("0000:e1:00"));
  EXPECT_FALSE(isPciAddress("virtio2"));
  EXPECT_TRUE(isPciHostBridge("pci10000:00"));
  EXPECT_FALSE(isPciHostBridge("pci0000"));
}

}  // namespace
}  // namespace peal::test

// What the configuration says, the choice of a GID and of devices, and how ports of two ranks are paired:
// tables without any wire.
#include "transports/verbs/gid.h"

#include <gtest/gtest.h>
#include <net/if.h>

#include "tests/topology/system_folder.h"
#include "tests/transports/verbs/fake.h"
#include "transports/verbs/connect.h"
#include "transports/verbs/errors.h"
#include "transports/verbs/fabric.h"

namespace peal::test {
namespace {

using namespace peal::verbs;  // NOLINT: the names under test

constexpr auto kV1 = IBV_GID_TYPE_ROCE_V1;
constexpr auto kV2 = IBV_GID_TYPE_ROCE_V2;

TEST(VerbsGid, ByTypeAndAddressWhateverTheOrder) {
  const std::vector<ibv_gid_entry> table{gidEntry(0, "10.0.0.5", kV1), gidEntry(1, "fe80::5", kV2),
                                         gidEntry(2, "fd00::5", kV2), gidEntry(7, "10.0.0.5", kV2)};
  Result<ChosenGid> chosen = chooseGid(table, {});
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->index, 7U);
  const std::vector<ibv_gid_entry> reversed(table.rbegin(), table.rend());
  EXPECT_EQ(chooseGid(reversed, {})->index, 7U);
  EXPECT_EQ(chooseGid(std::span(table).first(3), {})->index, 2U) << "IPv6 before link-local";
  EXPECT_EQ(chooseGid(std::span(table).first(2), {})->index, 1U) << "v2 before v1";
}

TEST(VerbsGid, WishesHold) {
  const std::vector<ibv_gid_entry> table{gidEntry(0, "10.0.0.5", kV1), gidEntry(1, "10.0.0.5", kV2),
                                         gidEntry(2, "192.168.1.5", kV2)};
  EXPECT_EQ(chooseGid(table, {RoceVersion::V1, {}})->index, 0U);
  EXPECT_EQ(chooseGid(table, {RoceVersion::Any, *parseSubnet("192.168.0.0/16")})->index, 2U);
  const Result<ChosenGid> none = chooseGid(table, {RoceVersion::V1, *parseSubnet("192.168.0.0/16")});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("192.168.1.5 (RoCE v2)"), std::string::npos) << none.error().message;
  const Result<ChosenGid> empty = chooseGid({}, {});
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().message.find("no GID"), std::string::npos);
}

TEST(VerbsGid, SubnetsParse) {
  EXPECT_EQ(parseSubnet("10.1.0.0/16")->bits, 112);
  EXPECT_EQ(parseSubnet("10.1.2.3")->bits, 128);
  EXPECT_EQ(parseSubnet("fd00::/8")->bits, 8);
  EXPECT_EQ(parseSubnet("")->bits, 0);
  for (const char* wrong : {"10.1.0.0/33", "10.1/16", "x", "fd00::/129", "10.0.0.0/", "10.0.0.0/1x", "/8"}) {
    EXPECT_FALSE(parseSubnet(wrong)) << wrong;
  }
  const ibv_gid gid = gidEntry(0, "10.1.129.1", kV2).gid;
  EXPECT_TRUE(inSubnet(gid, *parseSubnet("10.1.128.0/17")));
  EXPECT_FALSE(inSubnet(gid, *parseSubnet("10.1.0.0/17")));
  EXPECT_EQ(gidText(gid), "10.1.129.1");
}

TEST(VerbsOptions, FollowTheTable) {
  const Result<Configuration> table = Configuration::read([](const char* name) -> const char* {
    constexpr std::pair<const char*, const char*> kValues[] = {
        {"PEAL_IB_DEVICES", "mlx5_1:2"}, {"PEAL_IB_GID_TYPE", "v1"},
        {"PEAL_IB_SERVICE_LEVEL", "5"},  {"PEAL_IB_GID_SUBNET", "10.1.0.0/16"},
        {"PEAL_IB_TIMEOUT", "20"},       {"PEAL_IB_TRAFFIC_CLASS", "104"},
        {"PEAL_INTERFACE", "^eth0"},     {"PEAL_IB_RETRIES", "3"},
        {"PEAL_IB_QUEUE_PAIRS", "7"},    {"PEAL_DIRECT_READ", "0"}};
    const auto* found = std::find_if(std::begin(kValues), std::end(kValues), [&](const auto& entry) {
      return entry.first == std::string_view(name);
    });
    return found == std::end(kValues) ? nullptr : found->second;
  });
  ASSERT_TRUE(table) << table.error().message;
  const Result<Options> options = optionsOf(*table, {8192, 7});
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->fabric.slotBytes, 8192U);
  EXPECT_EQ(options->fabric.slots, 7);
  EXPECT_EQ(options->devices, "mlx5_1:2");
  EXPECT_EQ(options->interfaces, "^eth0");
  EXPECT_EQ(options->gid.version, RoceVersion::V1);
  EXPECT_EQ(options->gid.subnet.bits, 112);
  EXPECT_EQ(options->queuePairs, 7);
  EXPECT_EQ(options->serviceLevel, 5);
  EXPECT_EQ(options->trafficClass, 104);
  EXPECT_EQ(options->timeout, 20);
  EXPECT_EQ(options->retries, 3);
  EXPECT_FALSE(options->references);
  EXPECT_EQ(options->silenceLimitMs, 137438) << "twice the longest wait: 4 times 4.096 us << 20, 4 times";
}

std::vector<std::string> railNames(const Inventory& inventory) {
  std::vector<std::string> names;
  for (const Rail& rail : inventory.rails) {
    names.push_back(rail.name());
  }
  return names;
}

TEST(VerbsDevices, PatternsSelectPorts) {
  World world;
  std::vector<FakeDeviceSpec> devices{roceDevice("mlx5_10", "10.0.0.10"), roceDevice("mlx5_1", "10.0.0.1"),
                                      roceDevice("rxe0", "10.0.0.2")};
  devices[1].ports.push_back(devices[1].ports.front());
  FakeVerbs library(world, 0, devices);
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"", {"rxe0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1"}},
      {"mlx5_1", {"mlx5_1:1", "mlx5_1:2", "mlx5_10:1"}},
      {"=mlx5_1", {"mlx5_1:1", "mlx5_1:2"}},
      {"=mlx5_1:2", {"mlx5_1:2"}},
      {"mlx5:2", {"mlx5_1:2"}},
      {"rxe,mlx5_10", {"rxe0:1", "mlx5_10:1"}},
      {"^mlx5", {"rxe0:1"}},
      {"^=mlx5_1:1", {"rxe0:1", "mlx5_1:2", "mlx5_10:1"}},
      {"nothing", {}}};
  for (const auto& [pattern, expected] : cases) {
    Options options;
    options.devices = pattern;
    Result<Inventory> inventory = takeInventory(library, options);
    ASSERT_TRUE(inventory) << inventory.error().message;
    EXPECT_EQ(railNames(*inventory), expected) << pattern;
    EXPECT_EQ(inventory->ports.size(), 4U);
  }
  EXPECT_EQ(world.alive(), 0);
}

// Two RoCE ports, on lo and on an interface that only /sys names, and two of InfiniBand, the first with IP on
// lo.
TEST(VerbsDevices, PortsComeAndGoWithTheirInterfaces) {
  World world;
  const SystemFolder system;
  system.write("/sys/class/infiniband/roce7/ports/1/gid_attrs/ndevs/0", "eth7");
  system.write("/sys/class/infiniband/ib0/device/net/lo/dev_port", "0");
  system.write("/sys/class/infiniband/ib0/device/net/eth7/dev_port", "1");
  FakePort infiniBand;
  infiniBand.linkLayer = IBV_LINK_LAYER_INFINIBAND;
  infiniBand.gids = {gidEntry(0, "fe80::1", IBV_GID_TYPE_IB)};
  std::vector<FakeDeviceSpec> devices{roceDevice("rocelo", "127.0.0.9"),
                                      roceDevice("roce7", "10.7.0.1"),
                                      {"ib0", {infiniBand}},
                                      {"ib1", {infiniBand}}};
  for (ibv_gid_entry& entry : devices[0].ports.front().gids) {
    entry.ndev_ifindex = if_nametoindex("lo");
  }
  FakeVerbs library(world, 0, devices);
  const std::vector<std::string> lo{"ib0:1", "ib1:1", "rocelo:1"};
  const std::vector<std::string> eth7{"ib1:1", "roce7:1"};
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"", {"ib0:1", "ib1:1", "roce7:1", "rocelo:1"}},
      {"lo", lo},
      {"^eth7", lo},
      {"127.0.0.0/8", lo},
      {"eth7", eth7},
      {"^=lo", eth7},
      {"^127.0.0.0/8", eth7},
      {"10.7.0.0/16", eth7},
      {"=eth", {"ib1:1"}}};
  for (const auto& [pattern, expected] : cases) {
    Options options;
    options.interfaces = pattern;
    options.rdmaRoot = system.roots().sys + "/class/infiniband";
    Result<Inventory> inventory = takeInventory(library, options);
    ASSERT_TRUE(inventory) << inventory.error().message;
    EXPECT_EQ(railNames(*inventory), expected) << pattern;
    if (pattern == "lo") {
      EXPECT_EQ(inventory->ports[1].unused, "PEAL_INTERFACE=\"lo\" does not select its interface eth7");
    }
  }
}

TEST(VerbsDevices, NothingSelectedListsWhatExistsAndWhy) {
  World world;
  std::vector<FakeDeviceSpec> devices{roceDevice("rxe0", "10.0.0.1"), roceDevice("rxe1", "10.0.0.2"),
                                      roceDevice("rxe2", "10.0.0.3")};
  devices[1].ports.front().state = IBV_PORT_DOWN;
  devices[2].ports.front().gids.clear();
  FakeVerbs library(world, 0, devices);
  Options options;
  options.devices = "mlx5,^rxe2";
  const Result<std::unique_ptr<Fabric>> fabric = VerbsFabric::open(library, options);
  ASSERT_FALSE(fabric);
  const std::string& text = fabric.error().message;
  for (const char* part :
       {"rxe0:1", "PEAL_IB_DEVICES=\"mlx5,^rxe2\" does not select it", "rxe1:1", "rxe2:1"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  Options all;
  Result<Inventory> inventory = takeInventory(library, all);
  ASSERT_TRUE(inventory);
  const std::string why = explain(inventory->ports);
  EXPECT_NE(why.find("rxe1:1: the port is DOWN"), std::string::npos) << why;
  EXPECT_NE(why.find("rxe2:1: it has no GID"), std::string::npos) << why;
  FakeVerbs bare(world, 0, {});
  const Result<std::unique_ptr<Fabric>> none = VerbsFabric::open(bare, {});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("there is no InfiniBand or RoCE device"), std::string::npos);
  EXPECT_EQ(world.alive() - static_cast<int>(inventory->devices.size()) * 2, 0) << "context and domain each";
}

PortAddress port(const std::string& address, uint32_t type = kV2, int bits = 120) {
  PortAddress made;
  made.gid = gidEntry(0, address, type).gid;
  made.gidType = static_cast<uint8_t>(type);
  made.linkLayer = type == IBV_GID_TYPE_IB ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  made.subnetBits = static_cast<uint8_t>(bits);
  return made;
}

TEST(VerbsPorts, OfOneSubnetArePairedFirst) {
  using Pairs = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(pairPorts({port("10.0.1.1"), port("10.0.2.1")}, {port("10.0.2.2"), port("10.0.1.2")}),
            (Pairs{{0, 1}, {1, 0}}));
  EXPECT_EQ(pairPorts({port("10.0.1.1"), port("10.0.1.3")}, {port("10.0.1.2"), port("10.0.1.4")}),
            (Pairs{{0, 0}, {1, 1}}));
  EXPECT_EQ(pairPorts({port("10.0.1.1")}, {port("10.9.1.2"), port("10.0.1.4")}), (Pairs{{0, 1}}));
  EXPECT_EQ(pairPorts({port("10.0.1.1")}, {port("10.9.1.2")}), (Pairs{{0, 0}})) << "RoCE is routed";
  EXPECT_EQ(pairPorts({port("10.0.1.1", kV1)}, {port("10.0.1.2", kV2)}), (Pairs{})) << "other versions";
}

TEST(VerbsPorts, InfiniBandStaysInItsSubnet) {
  const auto infiniBand = [](const std::string& gid) { return port(gid, IBV_GID_TYPE_IB, 64); };
  EXPECT_EQ(pairPorts({infiniBand("fe80::1")}, {infiniBand("fe80::2")}).size(), 1U);
  EXPECT_EQ(pairPorts({infiniBand("fe80::1")}, {infiniBand("fec0::2")}).size(), 0U);
  EXPECT_EQ(pairPorts({infiniBand("fe80::1")}, {port("10.0.0.1")}).size(), 0U);
}

TEST(VerbsErrors, AreDecoded) {
  EXPECT_NE(describe(IBV_WC_RETRY_EXC_ERR, 0x81).find("IBV_WC_RETRY_EXC_ERR (12, vendor code 0x81)"),
            std::string::npos);
  EXPECT_NE(describe(IBV_WC_REM_ACCESS_ERR, 0).find("refused access to its memory"), std::string::npos);
  for (int status = IBV_WC_SUCCESS; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
    EXPECT_FALSE(describe(static_cast<ibv_wc_status>(status), 0).empty());
  }
  EXPECT_TRUE(mayPass(IBV_WC_RETRY_EXC_ERR));
  EXPECT_FALSE(mayPass(IBV_WC_REM_ACCESS_ERR));
}

}  // namespace
}  // namespace peal::test

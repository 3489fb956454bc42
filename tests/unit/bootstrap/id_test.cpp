// The 128 bytes, and which of a machine's addresses go into them.
#include "lib/bootstrap/id.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/bootstrap/roster.h"

namespace peal::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Address ipv4(const std::string& text) {
  in_addr host{};
  EXPECT_EQ(inet_pton(AF_INET, text.c_str(), &host), 1);
  return ipv4Address(&host, 0);
}
Address ipv6(const std::string& text, uint32_t scope = 0) {
  in6_addr host{};
  EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &host), 1);
  return ipv6Address(&host, 0, scope);
}

std::vector<std::string> texts(const std::vector<Address>& addresses) {
  std::vector<std::string> all;
  for (const Address& address : addresses) {
    all.push_back(address.text());
  }
  return all;
}

std::vector<InterfaceAddress> machine() {
  return {{"lo", ipv4("127.0.0.1"), AddressReach::Loopback},
          {"lo", ipv6("::1"), AddressReach::Loopback},
          {"eth0", ipv6("fe80::1", 2), AddressReach::LinkLocal},
          {"eth0", ipv6("fd00::2"), AddressReach::Routable},
          {"eth0", ipv4("192.0.2.2"), AddressReach::Routable},
          {"ib0", ipv4("198.51.100.7"), AddressReach::Routable},
          {"ib01", ipv4("169.254.3.4"), AddressReach::LinkLocal}};
}

std::vector<std::string> selected(const std::string& pattern) {
  const auto found = selectInterfaces(machine(), pattern);
  EXPECT_TRUE(found) << found.error().message;
  std::vector<std::string> names;
  for (const InterfaceAddress& entry : *found) {
    if (names.empty() || names.back() != entry.interface) {
      names.push_back(entry.interface);
    }
  }
  return names;
}

TEST(UniqueId, ReadsBack) {
  ASSERT_TRUE(startSodium());
  IdContent content;
  content.port = 0xabcd;
  content.secret = {1, 2, 3};
  content.start = RootStart::Maybe;
  content.addresses = {ipv4("192.0.2.2"), ipv6("fd00::2"), ipv4("127.0.0.1")};
  const Result<IdContent> read = decodeId(encodeId(content));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->place, RootPlace::Tcp);
  EXPECT_EQ(read->start, RootStart::Maybe);
  EXPECT_EQ(read->secret, content.secret);
  EXPECT_THAT(texts(read->addresses), ElementsAre("192.0.2.2:43981", "[fd00::2]:43981", "127.0.0.1:43981"));
  EXPECT_EQ(rendezvousKey(*read), rendezvousKey(content));

  content.place = RootPlace::Unix;
  content.name = "peal-somewhere";
  const Result<IdContent> local = decodeId(encodeId(content));
  ASSERT_TRUE(local) << local.error().message;
  EXPECT_EQ(local->name, "peal-somewhere");
}

TEST(UniqueId, WhatDoesNotFitIsLeftOutFromTheEnd) {
  ASSERT_TRUE(startSodium());
  IdContent content;
  content.port = 1;
  for (int i = 0; i < 40; ++i) {
    content.addresses.push_back(ipv4("10.0.0." + std::to_string(i)));
  }
  const Result<IdContent> many = decodeId(encodeId(content));
  ASSERT_TRUE(many);
  ASSERT_EQ(many->addresses.size(), 19u) << "(124 - 25) / 5";
  EXPECT_EQ(many->addresses.back().text(), "10.0.0.18:1");

  content.addresses.clear();
  for (int i = 0; i < 10; ++i) {
    content.addresses.push_back(ipv6("fd00::" + std::to_string(i)));
  }
  content.addresses.push_back(ipv4("127.0.0.1"));
  const Result<IdContent> mixed = decodeId(encodeId(content));
  ASSERT_TRUE(mixed);
  ASSERT_EQ(mixed->addresses.size(), 6u) << "five long ones, and the short one that still fits";
  EXPECT_EQ(mixed->addresses.back().text(), "127.0.0.1:1");
}

TEST(Interfaces, RoutableFirstThenLoopbackAndLinkLocalOnlyIfNothingElse) {
  EXPECT_THAT(texts(orderOffered(machine())),
              ElementsAre("192.0.2.2:0", "198.51.100.7:0", "[fd00::2]:0", "127.0.0.1:0", "[::1]:0"));
  std::vector<InterfaceAddress> unrouted;
  for (const InterfaceAddress& entry : machine()) {
    if (entry.reach != AddressReach::Routable) {
      unrouted.push_back(entry);
    }
  }
  EXPECT_THAT(texts(orderOffered(unrouted)),
              ElementsAre("169.254.3.4:0", "[fe80::1%2]:0", "127.0.0.1:0", "[::1]:0"));
}

TEST(Interfaces, PatternsSelect) {
  EXPECT_THAT(selected(""), ElementsAre("lo", "eth0", "ib0", "ib01"));
  EXPECT_THAT(selected("ib"), ElementsAre("ib0", "ib01"));
  EXPECT_THAT(selected("=ib0"), ElementsAre("ib0"));
  EXPECT_THAT(selected("eth,=ib0"), ElementsAre("eth0", "ib0"));
  EXPECT_THAT(selected("^lo,eth"), ElementsAre("ib0", "ib01"));
  EXPECT_THAT(selected("^=ib0"), ElementsAre("lo", "eth0", "ib01"));
  EXPECT_THAT(selected("ib,^=ib01"), ElementsAre("ib0"));
  EXPECT_THAT(selected("missing,eth0,"), ElementsAre("eth0"));
}

TEST(Interfaces, SubnetsSelectAddresses) {
  const auto addresses = [](const std::string& pattern) {
    const auto found = selectInterfaces(machine(), pattern);
    EXPECT_TRUE(found) << found.error().message;
    std::vector<std::string> all;
    for (const InterfaceAddress& entry : *found) {
      all.push_back(entry.address.text());
    }
    return all;
  };
  EXPECT_THAT(addresses("192.0.2.0/24"), ElementsAre("192.0.2.2:0"));
  EXPECT_THAT(addresses("192.0.0.0/22,198.51.100.7/32"), ElementsAre("192.0.2.2:0", "198.51.100.7:0"));
  EXPECT_THAT(addresses("192.0.2.128/0"),
              ElementsAre("127.0.0.1:0", "192.0.2.2:0", "198.51.100.7:0", "169.254.3.4:0"));
  EXPECT_THAT(addresses("fd00::/8"), ElementsAre("[fd00::2]:0"));
  EXPECT_THAT(addresses("^127.0.0.0/8,::1/128,fe80::/10,169.254.0.0/16"),
              ElementsAre("[fd00::2]:0", "192.0.2.2:0", "198.51.100.7:0"));
  EXPECT_THAT(addresses("eth0,^fc00::/6"), ElementsAre("192.0.2.2:0"));
  for (const char* none :
       {"192.0.2.3/32", "192.0.2.4/31", "192.0.2.0/33", "192.0.2.0/", "192.0.2/24", "fd00::/129"}) {
    EXPECT_FALSE(selectInterfaces(machine(), none)) << none;
  }
}

TEST(Interfaces, APatternThatSelectsNothingListsWhatThereIs) {
  const auto none = selectInterfaces(machine(), "wlan0");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, pealInvalidArgument);
  EXPECT_THAT(none.error().message, HasSubstr("PEAL_INTERFACE=\"wlan0\""));
  EXPECT_THAT(none.error().message, HasSubstr("eth0 (192.0.2.2)"));
  EXPECT_THAT(none.error().message, HasSubstr("ib0 (198.51.100.7)"));
}

TEST(Interfaces, ThisMachineHasALoopback) {
  const auto found = localAddresses();
  ASSERT_TRUE(found) << found.error().message;
  const auto loopback = selectInterfaces(*found, "=lo");
  ASSERT_TRUE(loopback) << loopback.error().message;
  EXPECT_EQ(loopback->front().reach, AddressReach::Loopback);
}

TEST(Interfaces, HostsResolve) {
  const auto numeric = resolveHost("127.0.0.1", 5);
  ASSERT_TRUE(numeric) << numeric.error().message;
  EXPECT_THAT(texts(*numeric), ElementsAre("127.0.0.1:5"));
  EXPECT_TRUE(isNumericHost("::1"));
  EXPECT_FALSE(isNumericHost("localhost"));
  const auto unknown = resolveHost("no such host", 5);
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("\"no such host\""));
}

TEST(Roster, ListsRanksForPeople) {
  EXPECT_EQ(rankList({2}), "rank 2");
  EXPECT_EQ(rankList({2, 5}), "ranks 2 and 5");
  EXPECT_EQ(rankList({2, 5, 7}), "ranks 2, 5 and 7");
  std::vector<int> many;
  for (int i = 0; i < 20; ++i) {
    many.push_back(i);
  }
  EXPECT_THAT(rankList(many), HasSubstr("14, 15 and 4 more"));
}

TEST(Roster, RefusesWhatOnlyAFaultyPeerWouldSay) {
  Roster roster;
  EXPECT_FALSE(roster.join(4, 4, "here"));
  EXPECT_FALSE(roster.join(0, 0, "here"));
  EXPECT_FALSE(roster.join(0, 1u << 31, "here"));
  ASSERT_TRUE(roster.join(1, 2, "here"));
  EXPECT_FALSE(roster.contribute(1, {})) << "not all have joined";
  ASSERT_TRUE(roster.join(0, 2, "there"));
  EXPECT_TRUE(roster.contribute(1, {}));
  EXPECT_FALSE(roster.contribute(1, {})) << "twice";
}

}  // namespace
}  // namespace peal::test

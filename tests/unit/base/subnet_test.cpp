#include "lib/base/subnet.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace peal {
namespace {

std::vector<std::byte> host(const std::string& text) {
  std::vector<std::byte> bytes(text.find(':') == text.npos ? 4 : 16);
  EXPECT_EQ(inet_pton(bytes.size() == 4 ? AF_INET : AF_INET6, text.c_str(), bytes.data()), 1) << text;
  return bytes;
}

TEST(Subnet, HoldsTheAddressesThatShareItsBits) {
  struct Row {
    const char* subnet;
    const char* host;
    bool holds;
  };
  for (const Row& row : {Row{"10.0.0.0/8", "10.255.1.2", true},
                         {"10.0.0.0/8", "11.0.0.0", false},
                         {"10.1.128.0/17", "10.1.129.1", true},
                         {"10.1.0.0/17", "10.1.129.1", false},
                         {"10.1.2.3/32", "10.1.2.3", true},
                         {"10.1.2.3/32", "10.1.2.2", false},
                         {"10.1.2.3/31", "10.1.2.2", true},
                         {"0.0.0.0/0", "200.1.2.3", true},
                         {"0.0.0.0/0", "fd00::1", false},
                         {"::/0", "fd00::1", true},
                         {"::/0", "1.2.3.4", false},
                         {"fd00::/9", "fd7f::1", true},
                         {"fd00::/9", "fd80::1", false},
                         {"fd00::1/128", "fd00::1", true},
                         {"fd00::1/128", "fd00::2", false}}) {
    const std::optional<Subnet> subnet = parseSubnet(row.subnet);
    ASSERT_TRUE(subnet) << row.subnet;
    EXPECT_EQ(subnet->holds(host(row.host)), row.holds) << row.host << " in " << row.subnet;
  }
}

TEST(Subnet, OtherTextsAreNone) {
  for (const char* text : {"", "eth0", "10.0.0.0", "/8", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1",
                           "10.0.0.0/8x", "10.0/8", "fd00::/129", "x/8"}) {
    EXPECT_FALSE(parseSubnet(text)) << text;
  }
}

}  // namespace
}  // namespace peal

// The identity of a node: equal for processes of one machine, told apart by each of its parts.
#include "lib/base/node.h"

#include <gtest/gtest.h>

namespace peal::test {
namespace {

TEST(Node, ThisMachineIsItself) {
  const NodeIdentity here = nodeIdentity();
  EXPECT_EQ(here, nodeIdentity());
  EXPECT_TRUE(sameNode(here, here));
  EXPECT_EQ(std::string(here.bootId.data()).size(), 36u) << "a UUID";
  EXPECT_NE(here.networkNamespace, 0u);
  EXPECT_NE(nodeName(here), "?");
}

TEST(Node, AnotherKernelOrNetworkIsAnotherNode) {
  const NodeIdentity here = nodeIdentity();
  NodeIdentity other = here;
  other.bootId[0] = other.bootId[0] == 'a' ? 'b' : 'a';
  EXPECT_FALSE(sameNode(here, other));
  EXPECT_FALSE(sameMachine(here, other));
  other = here;
  ++other.networkNamespace;
  EXPECT_FALSE(sameNode(here, other));
  EXPECT_TRUE(sameMachine(here, other));
}

TEST(Node, WithoutABootIdTheHostNameDecides) {
  NodeIdentity here = nodeIdentity();
  NodeIdentity other = here;
  here.bootId.fill('\0');
  EXPECT_FALSE(sameNode(here, other)) << "one of them knows its boot id";
  other.bootId.fill('\0');
  EXPECT_TRUE(sameNode(here, other));
  other.hostName[0] = other.hostName[0] == 'a' ? 'b' : 'a';
  EXPECT_FALSE(sameNode(here, other));
}

TEST(Node, AHostIdDecidesAlone) {
  NodeIdentity here = nodeIdentity();
  NodeIdentity other = here;
  here.hostId[0] = 'x';
  EXPECT_FALSE(sameNode(here, other)) << "only one has been given one";
  other.hostId[0] = 'y';
  EXPECT_FALSE(sameNode(here, other));
  EXPECT_FALSE(sameMachine(here, other));
  other.hostId[0] = 'x';
  ++other.networkNamespace;
  other.bootId[0] = other.bootId[0] == 'a' ? 'b' : 'a';
  EXPECT_TRUE(sameNode(here, other));
  EXPECT_TRUE(sameMachine(here, other));
}

}  // namespace
}  // namespace peal::test

// Processors as hwloc tells them, of made-up machines, and what /sys tells without it.
#include "lib/topology/processors.h"

#include <gtest/gtest.h>

#include "tests/topology/system_folder.h"

namespace peal::test {
namespace {

MachineNode machine(const ProcessorSource& source) {
  MachineNode node;
  const Result<void> found = discoverProcessors(source, node);
  EXPECT_TRUE(found) << found.error().message;
  return node;
}

class Hwloc : public testing::Test {
 protected:
  void SetUp() override {
    if (const HwlocSupport hwloc = probeHwloc(); !hwloc.available) {
      GTEST_SKIP() << hwloc.reason;
    }
  }
};

TEST_F(Hwloc, TwoPackagesOfTwoNumaNodes) {
  const MachineNode node = machine({.synthetic = "package:2 numa:2 l3:1 core:2 pu:2"});
  ASSERT_EQ(node.packages.size(), 2u);
  EXPECT_EQ(node.packages[1].cpus.text(), "8-15");
  ASSERT_EQ(node.numaNodes.size(), 4u);
  EXPECT_EQ(node.numaNodes[2].id, 2);
  EXPECT_EQ(node.numaNodes[2].cpus.text(), "8-11");
  EXPECT_GT(node.numaNodes[2].memoryBytes, 0u);
  ASSERT_EQ(node.cores.size(), 8u);
  EXPECT_EQ(node.cores[3].cpus.text(), "6-7");
  ASSERT_EQ(node.caches.size(), 4u);
  EXPECT_EQ(node.caches[0].level, 3);
  EXPECT_EQ(node.caches[1].cpus.text(), "4-7");
  EXPECT_TRUE(node.pciDevices.empty());
  EXPECT_EQ(node.allowedCpus.text(), "0-15") << "all of a machine that is not this one";
}

TEST_F(Hwloc, ARestrictedSetLeavesTheRestVisible) {
  const MachineNode node =
      machine({.synthetic = "package:2 numa:2 core:2 pu:2", .allowed = parseCpuSet("2-3,9")});
  EXPECT_EQ(node.allowedCpus.text(), "2-3,9");
  EXPECT_EQ(node.cores.size(), 8u);
  EXPECT_EQ(node.packages.size(), 2u);
}

// An excerpt of what lstopo writes: a cgroup that allows one processor and one NUMA node of two, and PCI.
constexpr const char* kXml = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
<object type="Machine" os_index="0" cpuset="0x3" complete_cpuset="0x3" allowed_cpuset="0x2" nodeset="0x3" complete_nodeset="0x3" allowed_nodeset="0x2" gp_index="1">
 <object type="Package" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="2">
  <info name="CPUModel" value="Made Up 3000"/>
  <object type="NUMANode" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="3" local_memory="1048576"/>
  <object type="Core" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="4">
   <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="5"/>
  </object>
 </object>
 <object type="Package" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="6">
  <object type="NUMANode" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="7" local_memory="2097152"/>
  <object type="Core" os_index="0" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="8">
   <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="9"/>
  </object>
  <object type="Bridge" gp_index="10" bridge_type="0-1" depth="0" bridge_pci="0000:[80-8f]">
   <object type="Bridge" gp_index="11" bridge_type="1-1" depth="1" bridge_pci="0000:[81-81]" pci_busid="0000:80:01.0" pci_type="0604 [8086:0001] [0000:0000] 00" pci_link_speed="31.5">
    <object type="PCIDev" gp_index="12" pci_busid="0000:81:00.0" pci_type="0207 [15b3:101b] [15b3:0001] 00" pci_link_speed="31.5"/>
   </object>
   <object type="PCIDev" gp_index="13" pci_busid="0000:80:02.0" pci_type="0302 [10de:2330] [10de:0001] a1" pci_link_speed="0"/>
  </object>
 </object>
</object>
</topology>
)";

TEST_F(Hwloc, ACgroupAndPciFromXml) {
  const MachineNode node = machine({.xml = kXml});
  EXPECT_EQ(node.allowedCpus.text(), "1");
  ASSERT_EQ(node.packages.size(), 2u) << "also what is not allowed";
  EXPECT_EQ(node.packages[0].model, "Made Up 3000");
  ASSERT_EQ(node.numaNodes.size(), 2u);
  EXPECT_FALSE(node.numaNodes[0].allowed);
  EXPECT_TRUE(node.numaNodes[1].allowed);
  EXPECT_EQ(node.numaNodes[1].memoryBytes, 2097152u);
  ASSERT_EQ(node.pciDevices.size(), 2u);
  EXPECT_EQ(node.pciDevices[0].kind, "network");
  EXPECT_EQ(node.pciDevices[0].place, (PciPlace{"0000:81:00.0", {"pci0000:80", "0000:80:01.0"}, 1}));
  EXPECT_EQ(node.pciDevices[1].kind, "3D");
  EXPECT_EQ(node.pciDevices[1].place, (PciPlace{"0000:80:02.0", {"pci0000:80"}, 1}));
}

TEST_F(Hwloc, RefusesWhatItDoesNotUnderstand) {
  MachineNode node;
  const Result<void> found = discoverProcessors({.synthetic = "package:nonsense"}, node);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("package:nonsense"), std::string::npos);
  EXPECT_FALSE(discoverProcessors({.xml = "<nothing/>"}, node));
}

TEST_F(Hwloc, ThisMachineHasWhatIsAllowed) {
  const MachineNode node = machine({});
  EXPECT_EQ(node.allowedCpus, allowedCpuSet());
  CpuSet all;
  for (const Core& core : node.cores) {
    all.cpus.insert(all.cpus.end(), core.cpus.cpus.begin(), core.cpus.cpus.end());
  }
  EXPECT_TRUE(CpuSet::of(all.cpus).contains(node.allowedCpus));
}

TEST(ProcessorsBySys, NumaNodesWithTheirProcessorsAndMemory) {
  const SystemFolder system;
  const std::string nodes = "/sys/devices/system/node";
  system.write(nodes + "/online", "0-1");
  system.write(nodes + "/node0/cpulist", "0-3");
  system.write(nodes + "/node0/meminfo", "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 1 kB");
  system.write(nodes + "/node1/cpulist", "");
  system.write("/proc/self/status", "Mems_allowed_list:\t0");
  MachineNode node;
  discoverProcessorsBySys({.allowed = parseCpuSet("1"), .roots = system.roots()}, node);
  EXPECT_EQ(node.allowedCpus.text(), "1");
  ASSERT_EQ(node.numaNodes.size(), 2u);
  EXPECT_EQ(node.numaNodes[0], (NumaNode{0, *parseCpuSet("0-3"), 1048576, true}));
  EXPECT_EQ(node.numaNodes[1], (NumaNode{1, {}, 0, false}));
}

}  // namespace
}  // namespace peal::test

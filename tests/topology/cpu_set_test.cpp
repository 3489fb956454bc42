// Sets of processors, and what this process is allowed.
#include "lib/topology/cpu_set.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "lib/topology/placement.h"
#include "tests/support/processes.h"
#include "tests/topology/system_folder.h"

namespace peal::test {
namespace {

TEST(CpuSet, TextAndBack) {
  for (const char* text : {"", "0", "0-3", "0-3,8", "1,3,5", "0,2-3,10-11,65535"}) {
    const std::optional<CpuSet> set = parseCpuSet(text);
    ASSERT_TRUE(set) << text;
    EXPECT_EQ(set->text(), text);
  }
  EXPECT_EQ(parseCpuSet("3,1,2,2")->text(), "1-3");
  EXPECT_EQ(parseCpuSet("0-3,8")->count(), 5);
}

TEST(CpuSet, RefusesWhatIsNoList) {
  for (const char* text :
       {"x", "1-", "-1", "3-1", "1,,2", "1,", ",1", "65536", "99999999999", "1 2", "0-3;8"}) {
    EXPECT_FALSE(parseCpuSet(text)) << text;
  }
}

TEST(CpuSet, ContainsAndIntersects) {
  const CpuSet four = *parseCpuSet("0-3");
  EXPECT_TRUE(four.contains(0));
  EXPECT_FALSE(four.contains(4));
  EXPECT_TRUE(four.contains(*parseCpuSet("1,3")));
  EXPECT_FALSE(four.contains(*parseCpuSet("3-4")));
  EXPECT_FALSE(four.contains(CpuSet{}));
  EXPECT_EQ((four & *parseCpuSet("2-7")).text(), "2-3");
}

TEST(Placement, TheAllowedSetFollowsTheBinding) {
  const CpuSet before = allowedCpuSet();
  ASSERT_FALSE(before.empty());
  const int last = before.cpus.back();
  expectAllSucceeded(runProcesses(1, kHangs, [&](const Child&) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(allowedCpuSet(), CpuSet{{last}});
    return 0;
  }));
  EXPECT_EQ(allowedCpuSet(), before);
}

TEST(Placement, NumaNodesOfProcessors) {
  const SystemFolder system;
  for (const auto& [cpu, node] : {std::pair{0, "node0"}, {1, "node0"}, {2, "node1"}}) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
    system.link(folder + "/" + node, std::string("/sys/devices/system/node/") + node);
    system.write(folder + "/node_is_no_number", "");
  }
  const SystemRoots roots = system.roots();
  EXPECT_EQ(numaNodeOfCpu(1, roots), 0);
  EXPECT_EQ(numaNodeOfCpu(2, roots), 1);
  EXPECT_EQ(numaNodeOfCpu(3, roots), -1);
  EXPECT_EQ(numaNodeOfCpus(*parseCpuSet("0-1"), roots), 0);
  EXPECT_EQ(numaNodeOfCpus(*parseCpuSet("1-2"), roots), -1);
  EXPECT_EQ(numaNodeOfCpus({}, roots), -1);
}

TEST(Placement, MemoryNodesOfTheCgroup) {
  const SystemFolder system;
  EXPECT_TRUE(allowedMemoryNodes(system.roots()).empty());
  system.write("/proc/self/status",
               "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0,2-3\nvoluntary_ctxt_switches:\t9");
  EXPECT_EQ(allowedMemoryNodes(system.roots()).text(), "0,2-3");
}

}  // namespace
}  // namespace peal::test

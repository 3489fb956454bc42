// What the processor can do is what the system says it can, and the allowed set is the thread's.
#include "lib/base/cpu.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>

namespace {

using peal::Isa;

// The flags of the first processor in /proc/cpuinfo: an independent witness.
std::set<std::string> systemFlags() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) == 0) {
      std::istringstream words(line.substr(line.find(':') + 1));
      return {std::istream_iterator<std::string>(words), {}};
    }
  }
  return {};
}

// bestIsa is decided once per process: each case runs in its own.
int inChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

int isaWithKnob(const char* value) {
  return inChild([value] {
    if (value == nullptr) {
      unsetenv("PEAL_ISA");
    } else {
      setenv("PEAL_ISA", value, 1);
    }
    return static_cast<int>(peal::bestIsa());
  });
}

TEST(Cpu, IsaIsWhatTheSystemReports) {
  const std::set<std::string> flags = systemFlags();
  if (flags.empty()) {
    GTEST_SKIP() << "/proc/cpuinfo has no flags line here to compare with";
  }
  const auto has = [&](const char* flag) { return flags.contains(flag); };
  Isa expected = Isa::Baseline;
  if (has("avx2") && has("fma") && has("f16c")) {
    expected =
        has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") ? Isa::Avx512 : Isa::Avx2;
  }
  EXPECT_EQ(isaWithKnob(nullptr), static_cast<int>(expected));
}

TEST(Cpu, TheKnobCapsAndNeverRaises) {
  const int best = isaWithKnob("auto");
  EXPECT_EQ(isaWithKnob(nullptr), best);
  EXPECT_EQ(isaWithKnob("avx512"), best);
  EXPECT_EQ(isaWithKnob("avx2"), std::min(best, static_cast<int>(Isa::Avx2)));
  EXPECT_EQ(isaWithKnob("baseline"), static_cast<int>(Isa::Baseline));
}

TEST(Cpu, IsaNamesAreTheKnobsWords) {
  EXPECT_STREQ(peal::isaName(Isa::Baseline), "baseline");
  EXPECT_STREQ(peal::isaName(Isa::Avx2), "avx2");
  EXPECT_STREQ(peal::isaName(Isa::Avx512), "avx512");
}

TEST(Cpu, AllowedCpusFollowsTheAffinity) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(peal::allowedCpus(), CPU_COUNT(&before));
  const int one = inChild([&before] {
    cpu_set_t first;
    CPU_ZERO(&first);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &before)) {
        CPU_SET(cpu, &first);
        break;
      }
    }
    return sched_setaffinity(0, sizeof first, &first) == 0 ? peal::allowedCpus() : 99;
  });
  EXPECT_EQ(one, 1);
}

}  // namespace

#include "bench/harness/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <limits>
#include <vector>

namespace peal::bench {
namespace {

// The rest of the first line of `path` that starts with `key`, without the colon and blanks before it.
std::string lineAfter(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) == 0) {
      const size_t at = line.find_first_not_of(": \t", key.size());
      return at == std::string::npos ? "" : line.substr(at);
    }
  }
  return "";
}

// Lines such as "VmRSS:	  1234 kB".
uint64_t kibAfter(const char* path, const std::string& key, uint64_t otherwise) {
  const std::string text = lineAfter(path, key);
  return text.empty() ? otherwise : std::strtoull(text.c_str(), nullptr, 10) * 1024;
}

}  // namespace

std::string hostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string cpuModel() {
  std::string model = lineAfter("/proc/cpuinfo", "model name");
  if (model.empty()) {  // not on every architecture
    utsname system{};
    uname(&system);
    model = system.machine;
  }
  return model;
}

int allowedCpus() {
  // Grown until the mask fits: machines with more than 1024 processors refuse a small one.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    std::vector<unsigned long> mask(bytes / sizeof(unsigned long));
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, bytes, set) == 0) {
      return CPU_COUNT_S(bytes, set);
    }
  }
  return 1;
}

std::string loadAverage() {
  std::ifstream file("/proc/loadavg");
  std::string one, five, fifteen;
  file >> one >> five >> fifteen;
  return one + " " + five + " " + fifteen;
}

uint64_t availableMemoryBytes() {
  return kibAfter("/proc/meminfo", "MemAvailable", std::numeric_limits<uint64_t>::max());
}

ProcessMemory processMemory() {
  return {kibAfter("/proc/self/status", "VmRSS", 0), kibAfter("/proc/self/status", "VmHWM", 0)};
}

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return text.data();
}

}  // namespace peal::bench

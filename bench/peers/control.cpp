#include "bench/peers/control.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace peers {
namespace {

constexpr double kSpinSeconds = 20e-6;
constexpr int kWarmBounces = 10, kBounces = 60;

void sleepWhile(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, nullptr, nullptr, 0);
}

void wakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void runOn(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

void* mapOrFail(size_t bytes, int flags, int file) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "cannot map %zu bytes: %s. Ask for smaller sizes or fewer ranks.\n", bytes,
                 strerror(errno));
    std::exit(1);
  }
  return memory;
}

}  // namespace

void fail(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, strerror(errno));
  std::exit(1);
}

double nowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t involuntarySwitches() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_nivcsw);
}

void dieWithParent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

Control& mapControl(const char* path) {
  if (path == nullptr) {
    return *static_cast<Control*>(mapOrFail(sizeof(Control), MAP_SHARED | MAP_ANONYMOUS, -1));
  }
  const int file = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(Control)) != 0) {
    fail(path);
  }
  void* memory = mapOrFail(sizeof(Control), MAP_SHARED, file);
  close(file);
  return *static_cast<Control*>(memory);
}

void* allocatePrivate(size_t bytes) { return mapOrFail(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1); }

void releasePrivate(void* memory, size_t bytes) { munmap(memory, bytes); }

Ranks::Ranks(Control& control, int rank, int size) : control_(control), rank_(rank), size_(size) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) {
    std::fprintf(stderr, "rank %d of %d: there can be 1 to %d ranks\n", rank, size, kMaxRanks);
    std::exit(2);
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    fail("sched_getaffinity");
  }
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) {
      if (cpus_ < 2) {
        firstCpus_[static_cast<size_t>(cpus_)] = cpu;
      }
      ++cpus_;
    }
  }
}

void Ranks::pin() const {
  if (isCrowded()) {
    return;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  int left = rank_;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set) && left-- == 0) {
      runOn(cpu);
      return;
    }
  }
}

void Ranks::barrier() {
  const uint32_t generation = control_.generation.load(std::memory_order_relaxed);
  // Pairs with the others' arrivals: the last one has seen what all wrote before.
  if (control_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
    control_.arrived.store(0, std::memory_order_relaxed);
    control_.generation.store(generation + 1, std::memory_order_release);  // pairs with the loads below
    wakeAll(control_.generation);
    return;
  }
  const double start = nowSeconds();
  while (control_.generation.load(std::memory_order_acquire) == generation) {
    if (isCrowded() || nowSeconds() - start > kSpinSeconds) {
      sleepWhile(control_.generation, generation);
    } else {
      relax();
    }
  }
}

Control::Result Ranks::combine(double value, uint64_t count) {
  control_.results[static_cast<size_t>(rank_)] = {value, count};
  barrier();
  Control::Result all{0, 0};
  for (int rank = 0; rank < size_; ++rank) {
    const Control::Result& one = control_.results[static_cast<size_t>(rank)];
    all = {std::max(all.value, one.value), all.count + one.count};
  }
  barrier();
  return all;
}

void Ranks::bounce() {
  ++bounces_;
  Line& mine = rank_ == 0 ? control_.ping : control_.pong;
  Line& other = rank_ == 0 ? control_.pong : control_.ping;
  if (rank_ == 0) {
    mine.value.store(bounces_, std::memory_order_release);  // pairs with the partner's load
  }
  while (other.value.load(std::memory_order_acquire) != bounces_) {
    relax();
  }
  if (rank_ == 1) {
    mine.value.store(bounces_, std::memory_order_release);  // pairs with the partner's load
  }
}

double Ranks::probeNs() {
  if (size_ < 2 || cpus_ < 2) {
    return 0;
  }
  barrier();
  if (rank_ < 2) {
    cpu_set_t before;
    CPU_ZERO(&before);
    sched_getaffinity(0, sizeof before, &before);
    if (isCrowded()) {
      runOn(firstCpus_[static_cast<size_t>(rank_)]);
    }
    for (int i = 0; i < kWarmBounces; ++i) {
      bounce();
    }
    const double start = nowSeconds();
    for (int i = 0; i < kBounces; ++i) {
      bounce();
    }
    if (rank_ == 0) {
      control_.pingNs = (nowSeconds() - start) / (2 * kBounces) * 1e9;
    }
    if (isCrowded()) {
      sched_setaffinity(0, sizeof before, &before);
    }
  }
  barrier();
  return control_.pingNs;
}

void Ranks::announce(const char* text) {
  std::snprintf(control_.text.data(), control_.text.size(), "%s", text);
  control_.command.fetch_add(1, std::memory_order_release);  // pairs with awaitCommand's load
  wakeAll(control_.command);
}

const char* Ranks::awaitCommand() {
  while (control_.command.load(std::memory_order_acquire) == seenCommand_) {
    sleepWhile(control_.command, seenCommand_);
  }
  ++seenCommand_;
  return control_.text.data();
}

}  // namespace peers

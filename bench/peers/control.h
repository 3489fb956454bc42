// What the ranks of one contender share besides the contender's own links: a page with a barrier, the
// near/far probe, each rank's last result, and the coordinator's command. Used by driver.cpp, the floors and
// the limits. Must never be part of what is timed, but for the spinning barrier that limits.cpp measures.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "bench/peers/platform.h"

namespace peers {

constexpr int kMaxRanks = 64;

// Alone in its cache line.
struct alignas(64) Line {
  std::atomic<uint64_t> value;
};

// All zeros is the state at the start: a new file or an anonymous mapping will do.
struct Control {
  std::atomic<uint32_t> command;  // counts commands; text below is of the latest
  std::array<char, 252> text;
  std::atomic<uint32_t> arrived, generation;  // of the barrier
  Line ping, pong, spinning[2];
  struct alignas(64) Result {
    double value;    // seconds, or what the command asks for
    uint64_t count;  // context switches, or wrong elements
  };
  std::array<Result, kMaxRanks> results;
  double pingNs;
};

class Ranks {
 public:
  Ranks(Control& control, int rank, int size);
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool isCrowded() const { return size_ > cpus_; }  // more ranks than CPUs
  Control& control() const { return control_; }

  // Rank r on the r-th CPU that this process may use. With more ranks than CPUs the system decides.
  void pin() const;
  // Spins for a moment, then sleeps: a rank that waits takes no CPU from those that work.
  void barrier();
  // The largest value and the sum of the counts over all ranks.
  Control::Result combine(double value, uint64_t count);
  // One-way time of a cache line between ranks 0 and 1, each on a CPU of its own; 0 where there is one of
  // either.
  double probeNs();

  // Command text from rank 0 to all.
  void announce(const char* text);
  const char* awaitCommand();

 private:
  void bounce();
  Control& control_;
  const int rank_, size_;
  int cpus_ = 0;
  std::array<int, 2> firstCpus_{};
  uint32_t seenCommand_ = 0;
  uint64_t bounces_ = 0;
};

// Maps `path` (created by whoever comes first), or anonymous memory that children share if it is null.
// Ends the program with a sentence if it cannot.
Control& mapControl(const char* path);
// Zeroed memory that is not shared; ends the program with a sentence if there is none.
void* allocatePrivate(size_t bytes);
void releasePrivate(void* memory, size_t bytes);

double nowSeconds();
uint64_t involuntarySwitches();  // of this process so far
void dieWithParent();
[[noreturn]] void fail(const char* what);  // with errno's sentence

}  // namespace peers

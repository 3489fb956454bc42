// What a communicator costs on one machine: the time to make one, and the memory that one takes.
//
// create/RANKS: from pealGetUniqueId on rank 0 until pealCommInitRank has returned on all ranks; Time is
// that. The aim for 8 ranks is below 20 ms. memory/idle/RANKS and memory/active/RANKS: resident memory per
// communicator, before and after all-reduces of all kinds of sizes on it: KiBPerRank (aims: 64 and 8192) and
// KiBOfAllRanks. Pages that ranks share count once. Ranks are processes; more of them than CPUs take turns,
// and the time includes that. Public API only.
#include <benchmark/benchmark.h>
#include <peal/peal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr int kMostRanks = 8;
constexpr int kComms = 8;  // at once, when memory is measured: what all share is spread over them
constexpr std::array<size_t, 4> kActiveBytes = {8, 4 << 10, 1 << 20, 16 << 20};

enum class Verb { Create, Use, Destroy, Memory };

struct Command {
  Verb verb;
  int ranks;  // the first so many take part
  pealUniqueId id;
};

void check(pealResult_t result, const char* what, pealComm_t comm = nullptr) {
  if (result != pealSuccess) {
    std::fprintf(stderr, "%s: %s: %s\n", what, pealGetErrorString(result), pealGetLastError(comm));
    std::_Exit(1);
  }
}

// Of this process, with its share of what it shares.
uint64_t residentBytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Pss:", 0) == 0) {
      return std::strtoull(line.c_str() + 4, nullptr, 10) * 1024;
    }
  }
  std::fprintf(stderr, "/proc/self/smaps_rollup has no line Pss\n");
  std::_Exit(1);
}

class Rank {
 public:
  explicit Rank(int rank) : rank_(rank), in_(kActiveBytes.back(), 1), out_(kActiveBytes.back(), 1) {}

  // The answer: bytes for Memory, else 0.
  uint64_t obey(const Command& command) {
    switch (command.verb) {
      case Verb::Create:
        comms_.emplace_back();
        check(pealCommInitRank(&comms_.back(), command.ranks, command.id, rank_), "pealCommInitRank");
        return 0;
      case Verb::Use:
        for (const pealComm_t comm : comms_) {
          for (const size_t bytes : kActiveBytes) {
            check(pealAllReduce(in_.data(), out_.data(), bytes / 4, pealInt32, pealSum, comm, nullptr),
                  "pealAllReduce", comm);
          }
        }
        return 0;
      case Verb::Destroy:
        for (const pealComm_t comm : comms_) {
          check(pealCommDestroy(comm), "pealCommDestroy", comm);
        }
        comms_.clear();
        return 0;
      case Verb::Memory:
        return residentBytes();
    }
    return 0;
  }

 private:
  const int rank_;
  std::vector<char> in_, out_;  // touched, so that they are there before anything is measured
  std::vector<pealComm_t> comms_;
};

// This process is rank 0; the others are children, which end with it.
class Ranks {
 public:
  Ranks() {
    for (int rank = 1; rank < kMostRanks; ++rank) {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        std::perror("socketpair");
        std::_Exit(1);
      }
      const pid_t child = fork();
      if (child < 0) {
        std::perror("fork");
        std::_Exit(1);
      }
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(rank, ends[1]);
      }
      close(ends[1]);
      children_.push_back(ends[0]);
    }
    own_ = std::make_unique<Rank>(0);
  }

  // The sum of the answers of the ranks that take part.
  uint64_t run(Verb verb, int ranks) {
    Command command{};
    command.verb = verb;
    command.ranks = ranks;
    if (verb == Verb::Create) {
      check(pealGetUniqueId(&command.id), "pealGetUniqueId");
    }
    for (int rank = 1; rank < ranks; ++rank) {
      transfer(&write, childOf(rank), &command, sizeof command);
    }
    uint64_t sum = own_->obey(command);
    for (int rank = 1; rank < ranks; ++rank) {
      uint64_t answer = 0;
      transfer(&read, childOf(rank), &answer, sizeof answer);
      sum += answer;
    }
    return sum;
  }

 private:
  int childOf(int rank) const { return children_[static_cast<size_t>(rank) - 1]; }

  template <class Function>
  static void transfer(Function function, int file, void* data, size_t bytes) {
    if (function(file, data, bytes) != static_cast<ssize_t>(bytes)) {
      std::fprintf(stderr, "a rank has ended\n");
      std::_Exit(1);
    }
  }

  [[noreturn]] static void serve(int rank, int parent) {
    Rank own(rank);
    Command command{};
    while (read(parent, &command, sizeof command) == static_cast<ssize_t>(sizeof command)) {
      uint64_t answer = own.obey(command);
      transfer(&write, parent, &answer, sizeof answer);
    }
    std::_Exit(0);
  }

  std::vector<int> children_;
  std::unique_ptr<Rank> own_;
};

void benchCreate(benchmark::State& state, Ranks& all) {
  const auto ranks = static_cast<int>(state.range(0));
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    all.run(Verb::Create, ranks);
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    all.run(Verb::Destroy, ranks);
  }
}

void benchMemory(benchmark::State& state, Ranks& all, bool isActive) {
  const auto ranks = static_cast<int>(state.range(0));
  for (int round = 0; round < 2; ++round) {  // what only the first one takes is not the communicators'
    all.run(Verb::Create, ranks);
    all.run(Verb::Use, ranks);
    all.run(Verb::Destroy, ranks);
  }
  double bytes = 0;
  for (auto _ : state) {
    const uint64_t before = all.run(Verb::Memory, ranks);
    for (int i = 0; i < kComms; ++i) {
      all.run(Verb::Create, ranks);
    }
    if (isActive) {
      all.run(Verb::Use, ranks);
    }
    const uint64_t after = all.run(Verb::Memory, ranks);
    bytes = (static_cast<double>(after) - static_cast<double>(before)) / kComms;
    all.run(Verb::Destroy, ranks);
  }
  state.counters["KiBPerRank"] = bytes / 1024 / ranks;
  state.counters["KiBOfAllRanks"] = bytes / 1024;
}

}  // namespace

int main(int argc, char** argv) {
  Ranks all;
  for (const int ranks : {2, kMostRanks}) {
    benchmark::RegisterBenchmark("create", [&all](benchmark::State& state) { benchCreate(state, all); })
        ->Arg(ranks)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
    for (const bool isActive : {false, true}) {
      benchmark::RegisterBenchmark(
          isActive ? "memory/active" : "memory/idle",
          [&all, isActive](benchmark::State& state) { benchMemory(state, all, isActive); })
          ->Arg(ranks)
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

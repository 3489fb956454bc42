// How fast messages cross a shared-memory link between two ranks, as threads and as processes.
//
// pingpong/HOW/BYTES: there and back; Time is the round trip. stream/HOW/BYTES: one way, as many as credits
// allow; the sender writes every byte of a slot, the receiver only releases. reference/HOW/BYTES: the same,
// by reference to a buffer of pealMemAlloc. connect/threads/RANKS: making a communicator's links.
// Ranks spin and then yield: give the two a core each, or the figures show the scheduler.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lib/bootstrap/bootstrap.h"
#include "lib/memory/registry.h"
#include "transports/shm/shm.h"

namespace peal {
namespace {

constexpr size_t kSlotBytes = 65536;
constexpr int kSlots = 4;
constexpr uint32_t kStop = ~0U;  // a digest's sequence: the partner ends
constexpr int kLimitMs = 10000;  // of every connection

enum class PartnerIs { Thread, Process };

template <class T>
T valueOrExit(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "{}\n", result.error().message);
    _exit(1);
  }
  return std::move(*result);
}

std::unique_ptr<Rendezvous> join(const pealUniqueId& id, int rank, int size) {
  return valueOrExit(joinRendezvous(id, rank, size, Deadline::afterMs(kLimitMs)));
}

std::unique_ptr<Endpoint> connect(Rendezvous& rendezvous) {
  return valueOrExit(connectShm(rendezvous, rendezvous.secret(),
                                ShmOptions{kSlotBytes, kSlots, true, Deadline::afterMs(kLimitMs)}));
}

template <class Condition>
void spinUntil(const Condition& condition) {
  for (int spins = 0; !condition(); ++spins) {
    cpuRelax();
    if (spins > 2000) {
      sched_yield();
    }
  }
}

std::byte* stage(Link& link, size_t bytes) {
  std::byte* slot = nullptr;
  spinUntil([&] { return (slot = link.tryStage(bytes)) != nullptr; });
  return slot;
}

void post(Link& link, size_t bytes, uint32_t sequence) {
  Digest digest;
  digest.sequence = sequence;
  link.post(bytes, digest);
}

Arrival receive(Link& link) {
  Arrival arrival;
  spinUntil([&] { return link.tryReceive(arrival); });
  return arrival;
}

// Rank 1: runs `serve` on its link.
class Partner {
 public:
  Partner(PartnerIs kind, const std::function<void(Link&)>& serve) {
    const pealUniqueId id = valueOrExit(createUniqueId());
    const auto run = [id, serve] {
      const std::unique_ptr<Rendezvous> rendezvous = join(id, 1, 2);
      const std::unique_ptr<Endpoint> endpoint = connect(*rendezvous);
      serve(endpoint->link(0));
    };
    if (kind == PartnerIs::Thread) {
      thread_ = std::thread(run);
    } else if ((pid_ = fork()) == 0) {
      run();
      _exit(0);
    }
    rendezvous_ = join(id, 0, 2);
    endpoint_ = connect(*rendezvous_);
  }
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;
  // The partner has been told to stop.
  ~Partner() {
    if (thread_.joinable()) {
      thread_.join();
    } else {
      waitpid(pid_, nullptr, 0);
    }
  }
  Link& link() { return endpoint_->link(1); }

 private:
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<Endpoint> endpoint_;
  std::thread thread_;
  pid_t pid_ = 0;
};

void echo(Link& link) {
  for (;;) {
    const Arrival arrival = receive(link);
    const uint32_t sequence = arrival.digest.sequence;
    const size_t bytes = arrival.bytes;
    if (sequence != kStop) {
      std::memcpy(stage(link, bytes), arrival.data, bytes);
    }
    link.release();
    if (sequence == kStop) {
      return;
    }
    post(link, bytes, sequence);
  }
}

void swallow(Link& link) {
  for (bool stop = false; !stop;) {
    stop = receive(link).digest.sequence == kStop;
    link.release();
  }
}

void stop(Link& link) {
  stage(link, 0);
  post(link, 0, kStop);
}

void pingPong(benchmark::State& state, PartnerIs kind, size_t bytes) {
  Partner partner(kind, echo);
  Link& link = partner.link();
  for ([[maybe_unused]] auto turn : state) {
    std::memset(stage(link, bytes), 1, bytes);
    post(link, bytes, 0);
    receive(link);
    link.release();
  }
  stop(link);
}

void stream(benchmark::State& state, PartnerIs kind, size_t bytes) {
  Partner partner(kind, swallow);
  Link& link = partner.link();
  for ([[maybe_unused]] auto turn : state) {
    std::memset(stage(link, bytes), 1, bytes);
    post(link, bytes, 0);
  }
  stop(link);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}

void reference(benchmark::State& state, PartnerIs kind, size_t bytes) {
  Partner partner(kind, swallow);
  Link& link = partner.link();
  const Result<void*> buffer = allocateShared(bytes);
  if (!buffer) {
    state.SkipWithError(buffer.error().message.c_str());
    stop(link);
    return;
  }
  const auto* data = static_cast<const std::byte*>(*buffer);
  for ([[maybe_unused]] auto turn : state) {
    spinUntil([&] { return link.tryPostReference(data, bytes, Digest{}); });
  }
  stop(link);
  spinUntil([&] { return link.drained(); });
  if (const Result<void> freed = freeShared(*buffer); !freed) {
    state.SkipWithError(freed.error().message.c_str());
  }
}

// Rank 0's time to connect; the rendezvous before it does not count.
void connectAll(benchmark::State& state, int ranks) {
  for ([[maybe_unused]] auto turn : state) {
    const pealUniqueId id = valueOrExit(createUniqueId());
    const auto run = [&](int rank) {
      const std::unique_ptr<Rendezvous> rendezvous = join(id, rank, ranks);
      const auto begin = Clock::now();
      const std::unique_ptr<Endpoint> endpoint = connect(*rendezvous);
      if (rank == 0) {
        state.SetIterationTime(std::chrono::duration<double>(Clock::now() - begin).count());
      }
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back(run, rank);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

void registerAll() {
  for (const auto& [kind, how] :
       {std::pair{PartnerIs::Thread, "threads"}, std::pair{PartnerIs::Process, "processes"}}) {
    for (const size_t bytes : {size_t{0}, size_t{8}, size_t{32}, size_t{64}, size_t{1024}, kSlotBytes}) {
      benchmark::RegisterBenchmark(fmt::format("pingpong/{}/{}", how, bytes).c_str(), pingPong, kind, bytes);
    }
    for (const size_t bytes : {size_t{8}, size_t{1024}, size_t{16384}, kSlotBytes}) {
      benchmark::RegisterBenchmark(fmt::format("stream/{}/{}", how, bytes).c_str(), stream, kind, bytes);
    }
    benchmark::RegisterBenchmark(fmt::format("reference/{}/{}", how, 1 << 20).c_str(), reference, kind,
                                 size_t{1} << 20);
  }
  for (const int ranks : {2, 4, 8}) {
    benchmark::RegisterBenchmark(fmt::format("connect/threads/{}", ranks).c_str(), connectAll, ranks)
        ->Unit(benchmark::kMillisecond)
        ->UseManualTime();
  }
}

}  // namespace
}  // namespace peal

int main(int argc, char** argv) {
  peal::registerAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

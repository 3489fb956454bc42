// How fast messages cross a network's fabric between two ranks, beside a spinning TCP connection of the same
// size, in alternation: the ratio holds on a machine whose speed changes.
//
// latency: there and back, half of it. stream: messages of a slot one way. both: both ways at once. The last
// two count payload, as many messages as credits allow; the receiver only releases.
//
//   bench_fabric [--namespaces A,B --address ADDRESS_OF_RANK_0] [--interfaces I,J]
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/micro/fabric/raw_tcp.h"
#include "lib/base/clock.h"
#include "transports/ucx/ucx.h"

namespace peal::bench {
namespace {

constexpr int kLimitMs = 20000;

struct FabricOptions {
  std::vector<std::string> namespaces;
  std::vector<std::string> interfaces;
  std::string address = "127.0.0.1";
  std::string congestion;
  int port = 23456;
  size_t slotBytes = 65536;
  int slots = 4;
  int rounds = 7;
  double seconds = 0.1;  // of one measurement
  bool reference = false;
};

[[noreturn]] void fail(const std::string& text) {
  fmt::print(stderr, "bench_fabric: {}\n", text);
  _exit(1);
}

// Two ranks over a socket pair.
class PairExchange : public Exchange {
 public:
  PairExchange(int rank, int socket) : rank_(rank), socket_(socket) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  Result<std::vector<std::vector<std::byte>>> allGather(const std::vector<std::byte>& mine) override {
    std::vector<std::byte> theirs(65536);
    if (send(socket_, mine.data(), mine.size(), 0) < 0) {
      return Error{pealSystemError, "the other rank is gone"};
    }
    const ssize_t got = recv(socket_, theirs.data(), theirs.size(), 0);
    if (got < 0) {
      return Error{pealSystemError, "the other rank is gone"};
    }
    theirs.resize(static_cast<size_t>(got));
    std::vector<std::vector<std::byte>> all{mine, theirs};
    if (rank_ == 1) {
      all[0].swap(all[1]);
    }
    return all;
  }
  // A number from rank 0 to rank 1.
  int64_t agree(int64_t number) {
    std::vector<std::byte> bytes(sizeof number);
    std::memcpy(bytes.data(), &number, sizeof number);
    Result<std::vector<std::vector<std::byte>>> all = allGather(bytes);
    if (!all || (*all)[0].size() != sizeof number) {
      fail("the other rank is gone");
    }
    std::memcpy(&number, (*all)[0].data(), sizeof number);
    return number;
  }

 private:
  int rank_;
  int socket_;
};

class NoControl : public ControlPlane {
  void send(int /*peerRank*/, std::span<const std::byte> /*message*/) override {}
};

// Both ways at once over a fabric, like RawTcp::exchange, in messages of at most a slot.
class OverFabric {
 public:
  OverFabric(Fabric& fabric, int peer, const FabricOptions& options)
      : fabric_(fabric), link_(fabric.link(peer)), options_(options), data_(options.slotBytes) {}

  void exchange(size_t sendBytes, size_t receiveBytes) {
    bool sent = sendBytes == 0;
    bool received = receiveBytes == 0;
    while (!sent || !received) {
      if (!sent) {
        const size_t bytes = std::min(sendBytes, options_.slotBytes);
        if (trySend(bytes)) {
          sendBytes -= bytes;
          sent = sendBytes == 0;
        }
      }
      Arrival arrival;
      if (!received && link_.tryReceive(arrival)) {
        receiveBytes -= std::min(receiveBytes, arrival.bytes);
        received = receiveBytes == 0;
        link_.release();
      }
      if (fabric_.fault()) {
        fail(fabric_.fault()->error.message);
      }
    }
  }
  void settle() {
    while (!fabric_.settled() || !link_.drained()) {
      fabric_.poll();
    }
  }

 private:
  bool trySend(size_t bytes) {
    if (options_.reference) {
      return link_.tryPostReference(data_.data(), bytes, {});
    }
    if (link_.tryStage(bytes) == nullptr) {
      return false;
    }
    link_.post(bytes, {});
    return true;
  }

  Fabric& fabric_;
  Link& link_;
  const FabricOptions& options_;
  std::vector<std::byte> data_;
};

using Exchanger = std::function<void(size_t sendBytes, size_t receiveBytes)>;

// Seconds of one call, on rank 0; both ranks call it.
double secondsOf(PairExchange& pair, double limit, const std::function<void()>& once) {
  once();
  auto begin = Clock::now();
  once();
  const double guess = std::chrono::duration<double>(Clock::now() - begin).count();
  const int64_t times = pair.agree(std::max<int64_t>(1, static_cast<int64_t>(limit / std::max(guess, 1e-7))));
  begin = Clock::now();
  for (int64_t i = 0; i < times; ++i) {
    once();
  }
  return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(times);
}

struct Case {
  const char* name;
  size_t bytes;
};

double measure(PairExchange& pair, const FabricOptions& options, const Case& row, const Exchanger& exchange) {
  const bool first = pair.rank() == 0;
  const auto oneWay = [&](bool forth) {
    exchange(forth == first ? row.bytes : 0, forth == first ? 0 : row.bytes);
  };
  return secondsOf(pair, options.seconds, [&] {
    if (row.name[0] == 'b') {
      exchange(row.bytes, row.bytes);
    } else if (row.name[0] == 's') {
      oneWay(true);
      exchange(first ? 0 : 1, first ? 1 : 0);  // so that all of it has arrived
    } else {
      oneWay(true);
      oneWay(false);
    }
  });
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int runRank(int rank, int socket, const FabricOptions& options) {
  PairExchange pair(rank, socket);
  if (!options.namespaces.empty()) {
    const std::string path = "/run/netns/" + options.namespaces[static_cast<size_t>(rank)];
    const int file = open(path.c_str(), O_RDONLY);
    // UCX finds interfaces below /sys, which shows the namespace that mounted it.
    if (file < 0 || setns(file, CLONE_NEWNET) != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0) {
      fail(fmt::format("{}: {}", path, strerror(errno)));
    }
    close(file);
  }
  UcxOptions ucxOptions;
  if (!options.interfaces.empty()) {
    ucxOptions.interfaces = {options.interfaces[static_cast<size_t>(rank) % options.interfaces.size()]};
  }
  Result<std::unique_ptr<Fabric>> fabric = openUcx({options.slotBytes, options.slots}, ucxOptions);
  if (!fabric) {
    fail(fabric.error().message);
  }
  NoControl control;
  if (Result<void> done = (*fabric)->connect(pair, {1 - rank}, control, Deadline::afterMs(kLimitMs)); !done) {
    fail(done.error().message);
  }
  OverFabric over(**fabric, 1 - rank, options);
  RawTcp raw(rank, options.address, options.port, options.congestion);
  const std::vector<Case> cases{{"latency", 8},      {"latency", 1024},   {"latency", 32768},
                                {"latency", 262144}, {"both", 262144},    {"both", 1 << 20},
                                {"both", 32 << 20},  {"stream", 32 << 20}};
  if (rank == 0) {
    fmt::print("# {:>7} {:>9} {:>12} {:>12} {:>7}   (median of {} rounds)\n", "case", "bytes", "TCP us",
               "fabric us", "ratio", options.rounds);
  }
  for (const Case& row : cases) {
    std::vector<double> tcp;
    std::vector<double> own;
    for (int round = 0; round < options.rounds; ++round) {
      tcp.push_back(measure(pair, options, row, [&](size_t out, size_t in) { raw.exchange(out, in); }));
      own.push_back(measure(pair, options, row, [&](size_t out, size_t in) { over.exchange(out, in); }));
      over.settle();
      pair.agree(0);
    }
    const double scale = row.name[0] == 'l' ? 0.5e6 : 1e6;
    if (rank == 0) {
      fmt::print("{:>9} {:>9} {:>12.2f} {:>12.2f} {:>7.2f}\n", row.name, row.bytes, median(tcp) * scale,
                 median(own) * scale, median(own) / median(tcp));
      std::fflush(stdout);
    }
  }
  pair.agree(0);
  return 0;
}

}  // namespace
}  // namespace peal::bench

int main(int argc, char** argv) {
  peal::bench::FabricOptions options;
  CLI::App app("Messages over a network's fabric, beside raw TCP.", "bench_fabric");
  app.add_option("--namespaces", options.namespaces, "Network namespaces of rank 0 and rank 1")
      ->delimiter(',')
      ->expected(2);
  app.add_option("--interfaces", options.interfaces, "Interface of rank 0 and of rank 1")->delimiter(',');
  app.add_option("--address", options.address, "IPv4 address of rank 0, for raw TCP");
  app.add_option("--port", options.port, "Port of raw TCP");
  app.add_option("--congestion", options.congestion, "Congestion control of raw TCP");
  app.add_option("--slot-bytes", options.slotBytes, "Bytes of a slot");
  app.add_option("--slots", options.slots, "Slots of a link");
  app.add_option("--rounds", options.rounds, "Rounds of each case");
  app.add_option("--seconds", options.seconds, "Seconds of one measurement");
  app.add_flag("--reference", options.reference, "Hand messages over by reference instead of through slots");
  CLI11_PARSE(app, argc, argv);
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    peal::bench::fail("socketpair");
  }
  pid_t ranks[2];
  for (int rank = 0; rank < 2; ++rank) {
    ranks[rank] = fork();
    if (ranks[rank] == 0) {
      close(sockets[1 - rank]);
      _exit(peal::bench::runRank(rank, sockets[rank], options));
    }
  }
  close(sockets[0]);
  close(sockets[1]);
  int worst = 0;
  for (const pid_t rank : ranks) {
    int status = 0;
    waitpid(rank, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  return worst;
}

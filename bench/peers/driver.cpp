#include "bench/peers/driver.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>
#include <vector>

namespace peers {
namespace {

constexpr double kCalibrationSeconds = 1e-3;
constexpr double kWarmUpSeconds = 5e-3;  // a call that takes longer needs none before a batch

// While it lives all threads of this process go before whatever else the machine runs, if `wanted` and
// allowed.
class RealTime {
 public:
  explicit RealTime(bool wanted) : wanted_(wanted) { set(SCHED_FIFO, 10); }
  ~RealTime() { set(SCHED_OTHER, 0); }
  RealTime(const RealTime&) = delete;
  RealTime& operator=(const RealTime&) = delete;

 private:
  void set(int policy, int priority) const {
    const sched_param param{priority};
    std::error_code none;
    for (const auto& thread : std::filesystem::directory_iterator(wanted_ ? "/proc/self/task" : "", none)) {
      sched_setscheduler(std::atoi(thread.path().filename().c_str()), policy, &param);
    }
  }

  const bool wanted_;
};

// Rank 0's line to the coordinator.
class Coordinator {
 public:
  explicit Coordinator(const char* path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_ < 0 || connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      fail(path);
    }
  }
  ~Coordinator() { close(socket_); }
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Without its end. "quit" when there is no more.
  std::string readLine() {
    std::string line;
    for (char one = 0; read(socket_, &one, 1) == 1;) {
      if (one == '\n') {
        return line;
      }
      line += one;
    }
    return "quit";
  }
  void writeLine(const std::string& line) const {
    const std::string text = line + "\n";
    if (send(socket_, text.data(), text.size(), MSG_NOSIGNAL) < 0) {
      fail("cannot answer the coordinator");
    }
  }

 private:
  int socket_ = -1;
};

class Server {
 public:
  Server(Peer& peer, Ranks& ranks) : peer_(peer), ranks_(ranks) {}

  // The answer, the same on all ranks; empty: that was quit.
  std::string obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    int id = 0;
    words >> verb >> id;
    if (verb == "case") {
      std::string collective, type;
      size_t bytes = 0;
      words >> collective >> type >> bytes;
      return start(id, collective, type, bytes);
    }
    const auto found = prepared_.find(id);
    if (found != prepared_.end() && verb == "batch") {
      int calls = 1;
      std::string option;
      words >> calls >> option;
      const RealTime realTime(option == "realtime");
      return batch(found->second, calls, option == "fresh");
    }
    if (found != prepared_.end() && verb == "end") {
      const uint64_t wrong = verify(found->second);
      release(found->second);
      prepared_.erase(found);
      return "end " + std::to_string(wrong);
    }
    return verb == "quit" ? "" : "unknown command: " + line;
  }

  void releaseAll() {
    for (auto& [id, one] : prepared_) {
      release(one);
    }
    prepared_.clear();
  }

 private:
  struct Prepared {
    Case what;
    void* send = nullptr;
    void* recv = nullptr;
    std::vector<std::byte> input;  // once a batch was fresh
    Call call;
    double seconds = 0;  // per call, lately; the same on all ranks
  };

  std::string start(int id, const std::string& collective, const std::string& type, size_t bytes) {
    const auto what = makeCase(collective, type, bytes, ranks_.rank(), ranks_.size());
    if (!what) {
      return "absent no such collective or type: " + collective + " " + type;
    }
    Prepared made;
    made.what = *what;
    made.send = peer_.allocate(what->bufferBytes());
    made.recv = peer_.allocate(what->bufferBytes());
    fillInputs(*what, made.send, made.recv);
    made.call = peer_.prepare(*what, made.send, made.recv);
    if (!made.call.run) {
      release(made);
      return "absent " + made.call.absence;
    }
    if (const uint64_t wrong = verify(made); wrong != 0) {
      release(made);
      return "wrong " + std::to_string(wrong);
    }
    if (made.call.isInPlace) {
      std::memset(made.recv, 0, what->bufferBytes());  // sums of sums would soon be infinite
    }
    made.seconds = calibrate(made);
    prepared_[id] = made;
    return "ok " + std::to_string(made.seconds * 1e6) + "e-6";
  }

  uint64_t verify(const Prepared& one) {
    ranks_.barrier();
    fillInputs(one.what, one.send, one.recv);
    if (one.call.isInPlace) {
      std::memcpy(one.recv, one.send, one.what.sendBytes());
    }
    ranks_.barrier();
    one.call.run();
    ranks_.barrier();
    return ranks_.combine(0, countWrong(one.what, one.recv)).count;
  }

  // Where this rank's input lies; nullptr: it has none.
  static void* inputOf(const Prepared& one) {
    if (one.what.collective == Collective::Broadcast) {
      return one.what.rank == kRoot ? one.recv : nullptr;
    }
    return one.call.isInPlace ? one.recv : one.send;
  }

  double timeCalls(const Prepared& one, int calls, void* freshInput = nullptr) {
    ranks_.barrier();
    const double start = nowSeconds();
    for (int i = 0; i < calls; ++i) {
      if (freshInput != nullptr) {
        std::memcpy(freshInput, one.input.data(), one.input.size());
      }
      one.call.run();
    }
    const double seconds = (nowSeconds() - start) / calls;
    return seconds;
  }

  double calibrate(const Prepared& one) {
    double seconds = ranks_.combine(timeCalls(one, 2), 0).value;
    if (seconds < kCalibrationSeconds) {
      const int calls = static_cast<int>(std::clamp(kCalibrationSeconds / seconds, 2.0, 1000.0));
      seconds = ranks_.combine(timeCalls(one, calls), 0).value;
    }
    return seconds;
  }

  std::string batch(Prepared& one, int calls, bool isFresh) {
    void* const freshInput = isFresh ? inputOf(one) : nullptr;
    if (freshInput != nullptr && one.input.empty()) {
      const auto* const first = static_cast<const std::byte*>(one.send);
      one.input.assign(first, first + one.what.sendBytes());
    }
    if (one.seconds < kWarmUpSeconds) {
      one.call.run();
    }
    const double before = ranks_.probeNs();
    const uint64_t switchesBefore = involuntarySwitches();
    const double seconds = timeCalls(one, calls, freshInput);
    const auto all = ranks_.combine(seconds, involuntarySwitches() - switchesBefore);
    const double after = ranks_.probeNs();
    one.seconds = all.value;
    std::ostringstream answer;
    answer << "batch " << all.value << ' ' << all.count << ' ' << before << ' ' << after;
    return answer.str();
  }

  void release(const Prepared& one) {
    ranks_.barrier();  // a peer may still read these buffers
    peer_.release(one.send, one.what.bufferBytes());
    peer_.release(one.recv, one.what.bufferBytes());
  }

  Peer& peer_;
  Ranks& ranks_;
  std::map<int, Prepared> prepared_;
};

}  // namespace

int serve(Peer& peer, Ranks& ranks, const char* socketPath) {
  ranks.pin();
  Server server(peer, ranks);
  std::unique_ptr<Coordinator> coordinator;
  if (ranks.rank() == 0) {
    coordinator = std::make_unique<Coordinator>(socketPath);
  }
  for (std::string answer = "-"; !answer.empty();) {
    if (coordinator != nullptr) {
      ranks.announce(coordinator->readLine().c_str());
    }
    answer = server.obey(ranks.awaitCommand());
    ranks.barrier();  // the text may be overwritten from here on
    if (coordinator != nullptr && !answer.empty()) {
      coordinator->writeLine(answer);
    }
  }
  server.releaseAll();
  return 0;
}

}  // namespace peers

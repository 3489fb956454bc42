// What the machine allows: the shortest code that gives the right result, without checks, types, errors or
// waits that end. driver_floor VARIANT RANK RANKS CONTROL SOCKET. Floats only. Started by bench/peers/run and
// limits.
//
//   shared     buffers that all ranks map: each reads the others' in place between two barriers
//   shared-nt  the same with non-temporal stores of the result
//   staged     private buffers, through slots of 64 KiB in shared memory (all-reduce only); up to 56 bytes
//   travel in
//              the cache line of their flag
//   readv      private buffers, read with process_vm_readv in pieces of 64 KiB
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "bench/peers/driver.h"
#include "bench/peers/kernels.h"

namespace {

using namespace peers;

constexpr size_t kPieceBytes = size_t{64} << 10;
constexpr size_t kPieceCount = kPieceBytes / sizeof(float);
constexpr size_t kLineBytes = 56;
// Below it a rank sums all for itself: two-shot saves reading but waits twice.
constexpr size_t kTwoShotBytes = size_t{4} << 10;
constexpr int kSpinsBeforeYield = 200;

enum class Variant { Shared, SharedNonTemporal, Staged, Readv };

// What the ranks of the floors share besides Control: one file that each maps.
struct Floor {
  struct alignas(64) Small {
    std::atomic<uint64_t> sequence;
    char data[kLineBytes];
  };
  struct Own {
    alignas(64) std::atomic<uint64_t> flag;    // of the barrier
    alignas(64) std::atomic<uint64_t> filled;  // pieces in slots so far
    alignas(64) Small small[2];
    pid_t process;
    uint64_t addresses[2];  // what it publishes: send, recv
    int files[2];           // of shared buffers
    alignas(64) char slots[2][kPieceBytes];
  };
  Own own[kMaxRanks];
};

class FloorPeer : public Peer {
 public:
  FloorPeer(Variant variant, Ranks& ranks, Floor& floor) : variant_(variant), ranks_(ranks), floor_(floor) {
    floor_.own[ranks.rank()].process = getpid();
    scratch_.resize(kPieceCount * static_cast<size_t>(ranks.size()));
  }

  void* allocate(size_t bytes) override {
    if (!isShared()) {
      return allocatePrivate(bytes);
    }
    const int file = memfd_create("peal floor", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
      fail("memfd_create");
    }
    void* memory = map(file, bytes);
    files_[memory] = file;
    return memory;
  }

  void release(void* memory, size_t bytes) override {
    if (!isShared()) {
      releasePrivate(memory, bytes);
      return;
    }
    for (void* mapped : mapped_[memory]) {
      munmap(mapped, bytes);
    }
    mapped_.erase(memory);
    close(files_.at(memory));
    files_.erase(memory);
    munmap(memory, bytes);
  }

  Call prepare(const Case& what, void* send, void* recv) override {
    if (what.type != Type::Float) {
      return {{}, "the floors are for float", false};
    }
    if (variant_ == Variant::Staged && what.collective != Collective::AllReduce) {
      return {{}, "the staged floor is for all-reduce", false};
    }
    const View view = publish(what, send, recv);
    return {[this, what, view] {
              if (isShared()) {
                runShared(what, view);
              } else if (variant_ == Variant::Staged) {
                runStaged(what, view);
              } else {
                runReadv(what, view);
              }
            },
            "", false};
  }

 private:
  // Every rank's buffers. Readv: addresses in that rank's memory, but for the own ones.
  struct View {
    std::vector<float*> send, recv;
  };

  // The elements of `count` that rank `rank` takes care of: whole cache lines.
  struct Range {
    size_t from, count;
  };
  Range sliceOf(size_t count, size_t rank) const {
    constexpr size_t kLine = 16;
    const size_t lines = (count + kLine - 1) / kLine, each = (lines + size() - 1) / size() * kLine;
    const size_t from = std::min(count, rank * each);
    return {from, std::min(count, from + each) - from};
  }

  bool isShared() const { return variant_ == Variant::Shared || variant_ == Variant::SharedNonTemporal; }
  Stores stores() const {
    return variant_ == Variant::SharedNonTemporal ? Stores::NonTemporal : Stores::Cached;
  }
  size_t me() const { return static_cast<size_t>(ranks_.rank()); }
  size_t size() const { return static_cast<size_t>(ranks_.size()); }

  static void* map(int file, size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory == MAP_FAILED) {
      fail("cannot map a shared buffer");
    }
    return memory;
  }

  View publish(const Case& what, void* send, void* recv) {
    auto& own = floor_.own[me()];
    void* const buffers[2] = {send, recv};
    for (size_t i = 0; i < 2; ++i) {
      own.addresses[i] = reinterpret_cast<uint64_t>(buffers[i]);
      own.files[i] = isShared() ? files_.at(buffers[i]) : -1;
    }
    ranks_.barrier();
    View view;
    for (size_t rank = 0; rank < size(); ++rank) {
      const auto& other = floor_.own[rank];
      float* at[2];
      for (size_t i = 0; i < 2; ++i) {
        at[i] = reinterpret_cast<float*>(other.addresses[i]);
        if (isShared() && rank != me()) {
          at[i] = static_cast<float*>(openOf(other.process, other.files[i], what.bufferBytes()));
          mapped_[buffers[i]].push_back(at[i]);
        }
      }
      view.send.push_back(at[0]);
      view.recv.push_back(at[1]);
    }
    ranks_.barrier();
    return view;
  }

  static void* openOf(pid_t process, int number, size_t bytes) {
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) {
      fail(path.c_str());
    }
    void* memory = map(file, bytes);
    close(file);
    return memory;
  }

  template <class Condition>
  void spinUntil(const Condition& condition) const {
    for (int spins = 0; !condition(); ++spins) {
      if (ranks_.isCrowded() && spins >= kSpinsBeforeYield) {
        sched_yield();
      } else {
        relax();
      }
    }
  }

  void flagBarrier() {
    ++barriers_;
    floor_.own[me()].flag.store(barriers_, std::memory_order_release);  // pairs with the others' loads
    for (size_t rank = 0; rank < size(); ++rank) {
      spinUntil([&] { return floor_.own[rank].flag.load(std::memory_order_acquire) >= barriers_; });
    }
  }

  void runShared(const Case& what, const View& view) {
    flagBarrier();
    switch (what.collective) {
      case Collective::AllReduce:
        if (what.recvBytes() < kTwoShotBytes) {
          sumOver(view, {0, what.count}, &view.recv[me()], 1, 0);
        } else {
          const Range mine = sliceOf(what.count, me());
          sumOver(view, mine, view.recv.data(), size(), mine.from);
        }
        break;
      case Collective::Reduce: {
        const Range mine = sliceOf(what.count, me());
        sumOver(view, mine, &view.recv[kRoot], 1, mine.from);
        break;
      }
      case Collective::ReduceScatter:
        sumOver(view, {me() * what.count, what.count}, &view.recv[me()], 1, 0);
        break;
      default:
        forPulls(
            what,
            [&](size_t rank, size_t from, float* to, bool ofRecv) {
              copyBytes(to, (ofRecv ? view.recv : view.send)[rank] + from, what.count * sizeof(float),
                        stores());
            },
            view.recv[me()]);
    }
    flagBarrier();
  }

  // The collectives that only move: calls pull(rank, from element, to, whether of its recv) for each piece.
  template <class Pull>
  void forPulls(const Case& what, const Pull& pull, float* recv) const {
    if (what.collective == Collective::Broadcast) {
      if (me() != kRoot) {
        pull(size_t{kRoot}, size_t{0}, recv, true);
      }
    } else if (what.collective == Collective::SendRecv) {
      pull((me() + size() - 1) % size(), size_t{0}, recv, false);
    } else {
      const bool isGather = what.collective == Collective::AllGather;
      for (size_t step = 0; step < size(); ++step) {
        const size_t rank = (me() + step) % size();  // not all from the same rank at once
        pull(rank, isGather ? 0 : me() * what.count, recv + rank * what.count, false);
      }
    }
  }

  // The sum over all ranks' inputs to `outputs` buffers, there from element `to` on.
  void sumOver(const View& view, Range range, float* const* recv, size_t outputs, size_t to) const {
    const float* inputs[kMaxRanks];
    float* outs[kMaxRanks];
    for (size_t rank = 0; rank < size(); ++rank) {
      inputs[rank] = view.send[rank] + range.from;
    }
    for (size_t output = 0; output < outputs; ++output) {
      outs[output] = recv[output] + to;
    }
    sumToAll(outs, static_cast<int>(outputs), inputs, ranks_.size(), range.count, stores());
  }

  // Two slots are enough: who fills a slot again has seen every other rank fill its next one, and so be done
  // with the last.
  void runStaged(const Case& what, const View& view) {
    if (what.recvBytes() <= kLineBytes) {
      runInLine(what, view);
      return;
    }
    for (size_t from = 0; from < what.count; from += kPieceCount) {
      const size_t count = std::min(kPieceCount, what.count - from), slot = pieces_++ % 2;
      auto& own = floor_.own[me()];
      std::memcpy(own.slots[slot], view.send[me()] + from, count * sizeof(float));
      own.filled.store(pieces_, std::memory_order_release);  // pairs with the others' loads
      const float* inputs[kMaxRanks];
      for (size_t rank = 0; rank < size(); ++rank) {
        auto& other = floor_.own[rank];
        spinUntil([&] { return other.filled.load(std::memory_order_acquire) >= pieces_; });
        inputs[rank] =
            rank == me() ? view.send[rank] + from : reinterpret_cast<const float*>(other.slots[slot]);
      }
      float* out = view.recv[me()] + from;
      sumToAll(&out, 1, inputs, static_cast<int>(size()), count, Stores::Cached);
    }
  }

  void runInLine(const Case& what, const View& view) {
    ++lines_;
    auto& mine = floor_.own[me()].small[lines_ % 2];
    std::memcpy(mine.data, view.send[me()], what.sendBytes());
    mine.sequence.store(lines_, std::memory_order_release);  // pairs with the others' loads
    float sums[kLineBytes / sizeof(float)] = {};
    for (size_t rank = 0; rank < size(); ++rank) {
      auto& other = floor_.own[rank].small[lines_ % 2];
      spinUntil([&] { return other.sequence.load(std::memory_order_acquire) >= lines_; });
      float values[kLineBytes / sizeof(float)];
      std::memcpy(values, other.data, sizeof values);
      for (size_t i = 0; i < what.count; ++i) {
        sums[i] += values[i];
      }
    }
    std::memcpy(view.recv[me()], sums, what.recvBytes());
  }

  void pullFrom(size_t rank, const float* from, float* to, size_t count) const {
    if (rank == me()) {
      std::memcpy(to, from, count * sizeof(float));
      return;
    }
    const size_t bytes = count * sizeof(float);
    for (size_t done = 0; done < bytes;) {
      const size_t piece = std::min(kPieceBytes, bytes - done);
      iovec local{reinterpret_cast<char*>(to) + done, piece};
      iovec remote{const_cast<char*>(reinterpret_cast<const char*>(from)) + done, piece};
      const ssize_t got = process_vm_readv(floor_.own[rank].process, &local, 1, &remote, 1, 0);
      if (got <= 0) {
        fail("process_vm_readv");
      }
      done += static_cast<size_t>(got);
    }
  }

  // out[i] = sum over ranks of send[from + i], the others' by pieces through the scratch.
  void sumPulled(const View& view, size_t from, size_t count, float* out) {
    for (size_t done = 0; done < count; done += kPieceCount) {
      const size_t piece = std::min(kPieceCount, count - done);
      const float* inputs[kMaxRanks];
      for (size_t rank = 0; rank < size(); ++rank) {
        inputs[rank] = view.send[rank] + from + done;
        if (rank != me()) {
          float* scratch = scratch_.data() + rank * kPieceCount;
          pullFrom(rank, inputs[rank], scratch, piece);
          inputs[rank] = scratch;
        }
      }
      float* to = out + done;
      sumToAll(&to, 1, inputs, static_cast<int>(size()), piece, Stores::Cached);
    }
  }

  void runReadv(const Case& what, const View& view) {
    float* recv = view.recv[me()];
    flagBarrier();
    switch (what.collective) {
      case Collective::AllReduce:
      case Collective::Reduce: {
        if (what.recvBytes() < kTwoShotBytes) {
          if (what.collective == Collective::AllReduce || me() == kRoot) {
            sumPulled(view, 0, what.count, recv);
          }
          break;
        }
        const Range mine = sliceOf(what.count, me());
        sumPulled(view, mine.from, mine.count, recv + mine.from);
        flagBarrier();
        for (size_t rank = 0; rank < size(); ++rank) {
          const Range theirs = sliceOf(what.count, rank);
          if (rank != me() && (what.collective == Collective::AllReduce || me() == kRoot)) {
            pullFrom(rank, view.recv[rank] + theirs.from, recv + theirs.from, theirs.count);
          }
        }
        break;
      }
      case Collective::ReduceScatter:
        sumPulled(view, me() * what.count, what.count, recv);
        break;
      default:
        forPulls(
            what,
            [&](size_t rank, size_t from, float* to, bool ofRecv) {
              pullFrom(rank, (ofRecv ? view.recv : view.send)[rank] + from, to, what.count);
            },
            recv);
    }
    flagBarrier();
  }

  const Variant variant_;
  Ranks& ranks_;
  Floor& floor_;
  uint64_t barriers_ = 0, pieces_ = 0, lines_ = 0;
  std::vector<float> scratch_;
  std::map<void*, int> files_;                  // of the own buffers
  std::map<void*, std::vector<void*>> mapped_;  // others' buffers, by the own one beside them
};

Floor& mapFloor(const std::string& path) {
  const int file = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(Floor)) != 0) {
    fail(path.c_str());
  }
  void* memory = mmap(nullptr, sizeof(Floor), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    fail(path.c_str());
  }
  close(file);
  return *static_cast<Floor*>(memory);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, Variant> variants = {{"shared", Variant::Shared},
                                                   {"shared-nt", Variant::SharedNonTemporal},
                                                   {"staged", Variant::Staged},
                                                   {"readv", Variant::Readv}};
  if (argc != 6 || variants.count(argv[1]) == 0) {
    std::fprintf(stderr, "usage: driver_floor shared|shared-nt|staged|readv RANK RANKS CONTROL SOCKET\n");
    return 2;
  }
  if (const char* reason = whyNoKernels(); reason != nullptr) {
    std::fprintf(stderr, "%s\n", reason);
    return 1;
  }
  dieWithParent();
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where Yama allows reading one's children only
  Ranks ranks(mapControl(argv[4]), std::atoi(argv[2]), std::atoi(argv[3]));
  FloorPeer peer(variants.at(argv[1]), ranks, mapFloor(std::string(argv[4]) + ".floor"));
  return serve(peer, ranks, argv[5]);
}

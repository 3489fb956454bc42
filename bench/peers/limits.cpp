// The limits of this machine that bound every collective on host memory: how quickly one process and two
// copy, add and read at the sizes of each cache, a barrier of flags, process_vm_readv. Prints a JSON object.
// peers_limits [SAMPLES [MOST-BYTES]]:
// arrays larger than that are left out. Started by bench/peers/limits, which measures the floors besides.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "bench/peers/control.h"
#include "bench/peers/kernels.h"

namespace {

using namespace peers;

constexpr double kSampleSeconds = 1e-3;
constexpr size_t kFewest = 5;  // samples without a context switch, below which all count
constexpr int kBarriers = 500;

struct Arrays {
  explicit Arrays(size_t bytesOfEach) : bytes(bytesOfEach) {
    for (float*& one : all) {
      one = static_cast<float*>(allocatePrivate(bytes));
      std::memset(one, 1, bytes);  // pages that are there; small numbers
    }
  }
  ~Arrays() {
    for (float* one : all) {
      releasePrivate(one, bytes);
    }
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  void add(Stores stores) {
    float* out = all[0];
    const float* in[2] = {all[1], all[2]};
    sumToAll(&out, 1, in, 2, bytes / sizeof(float), stores);
  }

  size_t bytes;
  float* all[3] = {};
};

struct Kernel {
  const char* name;
  std::function<void(Arrays&)> run;
};

volatile float kept = 0;  // so that what is read is needed

const std::vector<Kernel>& kernels() {
  static const std::vector<Kernel> all = {
      {"memcpy", [](Arrays& a) { copyBytes(a.all[0], a.all[1], a.bytes, Stores::Cached); }},
      {"copy, non-temporal stores",
       [](Arrays& a) { copyBytes(a.all[0], a.all[1], a.bytes, Stores::NonTemporal); }},
      {"a=b+c", [](Arrays& a) { a.add(Stores::Cached); }},
      {"a=b+c, non-temporal stores", [](Arrays& a) { a.add(Stores::NonTemporal); }},
      {"read", [](Arrays& a) { kept = readAll(a.all[0], a.bytes / sizeof(float)); }},
  };
  return all;
}

// The median over samples of the slowest rank's seconds per call, of those in which no rank lost its CPU.
double medianSeconds(Ranks& ranks, int samples, const std::function<void()>& call) {
  call();
  ranks.barrier();
  const double start = nowSeconds();
  call();
  const double once = ranks.combine(nowSeconds() - start, 0).value;
  const int calls = static_cast<int>(std::clamp(kSampleSeconds / std::max(once, 1e-9), 1.0, 1e5));
  std::vector<double> clean, every;
  for (int sample = 0; sample < samples; ++sample) {
    ranks.barrier();
    const uint64_t switches = involuntarySwitches();
    const double from = nowSeconds();
    for (int i = 0; i < calls; ++i) {
      call();
    }
    const auto all = ranks.combine((nowSeconds() - from) / calls, involuntarySwitches() - switches);
    every.push_back(all.value);
    if (all.count == 0) {
      clean.push_back(all.value);
    }
  }
  std::vector<double>& used = clean.size() >= std::min(kFewest, every.size()) ? clean : every;
  std::sort(used.begin(), used.end());
  return used[used.size() / 2];
}

// Runs `body` as rank 0 of `size` processes, and as the others in children.
void onRanks(int size, const std::function<void(Ranks&)>& body) {
  Control& control = mapControl(nullptr);
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  const pid_t child = size > 1 ? fork() : -1;
  if (size > 1 && child < 0) {
    fail("fork");
  }
  if (child == 0) {
    dieWithParent();
    Ranks ranks(control, 1, size);
    ranks.pin();
    body(ranks);
    std::_Exit(0);  // what the parent has not yet written is not the child's to print
  }
  {
    Ranks ranks(control, 0, size);
    ranks.pin();
    body(ranks);
  }
  int status = 0;
  if (size > 1 && (waitpid(child, &status, 0) != child || status != 0)) {
    std::fprintf(stderr, "the second process of the limits ended with status %d\n", status);
    std::exit(1);
  }
  sched_setaffinity(0, sizeof before, &before);  // or the next child would be pinned beside its parent
  releasePrivate(&control, sizeof control);
}

size_t cacheBytes(int name, size_t otherwise) {
  const long bytes = sysconf(name);
  return bytes > 0 ? static_cast<size_t>(bytes) : otherwise;
}

// Three arrays fit the cache with room to spare; those of DRAM are twice the last cache each.
struct Place {
  const char* name;
  size_t bytes;
};
std::vector<Place> places(size_t mostBytes) {
  const size_t second = cacheBytes(_SC_LEVEL2_CACHE_SIZE, size_t{512} << 10);
  const size_t third = cacheBytes(_SC_LEVEL3_CACHE_SIZE, size_t{8} << 20);
  const size_t last = std::max(2 * third, size_t{32} << 20);
  std::vector<Place> all = {{"L2", second / 8},
                            {"L3", std::clamp(third / 10, 2 * second, size_t{8} << 20)},
                            {"DRAM", std::min(last, size_t{512} << 20)}};
  all.erase(std::remove_if(all.begin(), all.end(), [&](const Place& one) { return one.bytes > mostBytes; }),
            all.end());
  return all;
}

void printBandwidths(int samples, size_t mostBytes) {
  std::printf("\"bandwidth\": [");
  const char* separator = "";
  for (const Place& place : places(mostBytes)) {
    for (const Kernel& kernel : kernels()) {
      double rates[2] = {};
      for (int size = 1; size <= 2; ++size) {
        onRanks(size, [&](Ranks& ranks) {
          Arrays arrays(place.bytes);
          const int fewer = place.bytes > (size_t{32} << 20) ? std::max(3, samples / 10) : samples;
          const double seconds = medianSeconds(ranks, fewer, [&] { kernel.run(arrays); });
          rates[size - 1] = size * static_cast<double>(place.bytes) / seconds / 1e9;
        });
      }
      std::printf(
          "%s\n  {\"place\": \"%s\", \"bytes\": %zu, \"kernel\": \"%s\", \"oneProcessGBs\": %.2f, "
          "\"twoProcessesGBs\": %.2f}",
          separator, place.name, place.bytes, kernel.name, rates[0], rates[1]);
      std::fflush(stdout);
      separator = ",";
    }
  }
  std::printf("]");
}

void spinBarrier(Ranks& ranks, uint64_t count) {
  auto& lines = ranks.control().spinning;
  lines[ranks.rank()].value.store(count, std::memory_order_release);  // pairs with the other's load
  while (lines[1 - ranks.rank()].value.load(std::memory_order_acquire) < count) {
    relax();
  }
}

void printFlags(int samples) {
  onRanks(2, [&](Ranks& ranks) {
    uint64_t count = 0;
    const double seconds = medianSeconds(ranks, samples, [&] {
      for (int i = 0; i < kBarriers; ++i) {
        spinBarrier(ranks, ++count);
      }
    });
    std::vector<double> pings;
    for (int i = 0; i < samples; ++i) {
      pings.push_back(ranks.probeNs());
    }
    std::sort(pings.begin(), pings.end());
    if (ranks.rank() == 0) {
      std::printf(",\n\"flagBarrierNs\": %.1f,\n\"pingNs\": %.1f", seconds / kBarriers * 1e9,
                  pings[pings.size() / 2]);
    }
  });
}

// Rank 0 reads from rank 1; both: each from the other at the same time.
void printReadv(int samples, size_t mostBytes) {
  std::printf(",\n\"processVmReadv\": [");
  const char* separator = "";
  for (const size_t bytes : {size_t{4} << 10, size_t{64} << 10, size_t{1} << 20, size_t{32} << 20}) {
    if (bytes > mostBytes) {
      continue;
    }
    double seconds[2] = {};
    for (const bool both : {false, true}) {
      onRanks(2, [&](Ranks& ranks) {
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where Yama allows reading one's children only
        Arrays arrays(bytes);
        const auto me = static_cast<size_t>(ranks.rank());
        auto& results = ranks.control().results;
        results[me] = {static_cast<double>(getpid()), reinterpret_cast<uint64_t>(arrays.all[1])};
        ranks.barrier();
        const auto process = static_cast<pid_t>(results[1 - me].value);
        iovec remote{reinterpret_cast<void*>(results[1 - me].count), bytes};
        iovec local{arrays.all[0], bytes};
        ranks.barrier();
        const double median = medianSeconds(ranks, samples, [&] {
          if (ranks.rank() == 0 || both) {
            if (process_vm_readv(process, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) {
              fail("process_vm_readv");
            }
          }
        });
        seconds[both ? 1 : 0] = median;
        ranks.barrier();
      });
    }
    std::printf("%s\n  {\"bytes\": %zu, \"oneReadsUs\": %.2f, \"bothReadUs\": %.2f}", separator, bytes,
                seconds[0] * 1e6, seconds[1] * 1e6);
    separator = ",";
  }
  std::printf("]");
}

}  // namespace

int main(int argc, char** argv) {
  const int samples = argc > 1 ? std::atoi(argv[1]) : 50;
  const size_t mostBytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : SIZE_MAX;
  if (samples < 1 || argc > 3) {
    std::fprintf(stderr, "usage: peers_limits [SAMPLES [MOST-BYTES]]\n");
    return 2;
  }
  if (const char* reason = whyNoKernels(); reason != nullptr) {
    std::fprintf(stderr, "%s\n", reason);
    return 1;
  }
  std::printf("{");
  printBandwidths(samples, mostBytes);
  printFlags(samples);
  printReadv(samples, mostBytes);
  std::printf("}\n");
  return 0;
}

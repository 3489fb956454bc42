// gpu_bench: the kernels of one GPU, each as a ratio to what the same GPU's device-to-device copy moves.
//
// Times by CUDA events on one stream, medians of 7; every row says how many bytes of memory traffic its
// figure counts. Ranks of the all-reduces are threads' communicators on the one GPU, launched as one group.
// Each part runs by itself: one that fails is told, and the others' rows are there. Prints a table and, as
// its first argument says, writes JSON. Run by tools/gpu-check. A second argument divides all sizes: for a
// run on simulated GPUs (tests/cuda), whose times mean nothing.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/micro/gpu/machine.h"
#include "lib/executor/cuda/loops_kernels.h"
#include "peal/adamw.h"

namespace peal::gpubench {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kLargeBytes = 512 * kMiB;
constexpr unsigned kLoopThreads = 512;

struct Row {
  std::string name;
  double seconds;
  double trafficBytes;                // of memory, read and written; 0: a latency
  std::optional<double> targetRatio;  // of device-to-device copy
  std::optional<double> targetSeconds;
};

class Bench {
 public:
  explicit Bench(size_t divisor) : divisor_(divisor) {
    checkCuda(cudaSetDevice(0), "cudaSetDevice");
    checkCuda(cudaGetDeviceProperties(&properties_, 0), "cudaGetDeviceProperties");
  }

  // False: a part failed.
  bool runAll() {
    bool good = part("copies", [&] { copies(); });
    good = part("sums", [&] { reductions(); }) && good;
    for (const size_t elements : {size_t{100'000'000}, size_t{1'000'000'000}}) {
      good = part("AdamW", [&] { adamw(elements / divisor_); }) && good;
    }
    for (const int ranks : {2, 4, 8}) {
      good = part("all-reduces", [&] { allReduces(ranks); }) && good;
    }
    return good;
  }

  void print() const {
    fmt::print("# {} ({} SMs, compute capability {}.{})\n", properties_.name, properties_.multiProcessorCount,
               properties_.major, properties_.minor);
    fmt::print("{:<52} {:>12} {:>10} {:>8} {:>8}\n", "kernel", "time (us)", "GB/s", "of copy", "target");
    for (const Row& row : rows_) {
      const bool latency = row.trafficBytes == 0;
      fmt::print("{:<52} {:>12.2f} {:>10} {:>8} {:>8}\n", row.name, row.seconds * 1e6,
                 latency ? "" : fmt::format("{:.0f}", row.trafficBytes / row.seconds * 1e-9),
                 latency ? "" : fmt::format("{:.2f}", ratio(row)), targetText(row));
    }
  }

  nlohmann::json json() const {
    nlohmann::json rows = nlohmann::json::array();
    for (const Row& row : rows_) {
      nlohmann::json one{{"name", row.name}, {"seconds", row.seconds}, {"traffic_bytes", row.trafficBytes}};
      if (row.trafficBytes > 0) {
        one["ratio_to_copy"] = ratio(row);
      }
      if (row.targetRatio) {
        one["target_ratio"] = *row.targetRatio;
      }
      if (row.targetSeconds) {
        one["target_seconds"] = *row.targetSeconds;
      }
      rows.push_back(std::move(one));
    }
    return {{"device", properties_.name},
            {"multiprocessors", properties_.multiProcessorCount},
            {"copy_bytes_per_second", copyRate_},
            {"rows", std::move(rows)}};
  }

 private:
  // On a stream of its own: a part that failed may have left its stream in the midst of a capture.
  template <class Work>
  bool part(const char* name, const Work& work) {
    try {
      stream_.emplace(divisor_ == 1 ? 7 : 1);
      work();
      return true;
    } catch (const std::exception& error) {
      fmt::print(stderr, "gpu_bench: {}: {}\n", name, error.what());
      return false;
    }
  }
  int repeats(int wanted) const { return divisor_ == 1 ? wanted : 1; }
  size_t scaled(size_t bytes) const { return (bytes / divisor_ + 255) / 256 * 256; }

  double ratio(const Row& row) const { return row.trafficBytes / row.seconds / copyRate_; }
  std::string targetText(const Row& row) const {
    return row.targetRatio     ? fmt::format(">= {:.2f}", *row.targetRatio)
           : row.targetSeconds ? fmt::format("<= {:.1f}", *row.targetSeconds * 1e6)
                               : std::string();
  }
  void add(const std::string& name, double seconds, double traffic, std::optional<double> target = {}) {
    rows_.push_back({name, seconds, traffic, target, std::nullopt});
  }

  void copies() {
    const size_t bytes = scaled(kLargeBytes);
    const double traffic = 2 * static_cast<double>(bytes);
    const Memory from(bytes), to(bytes);
    const double copied = stream_->time(repeats(10), [&] {
      checkCuda(cudaMemcpyAsync(to.as(), from.as(), bytes, cudaMemcpyDeviceToDevice, stream_->get()),
                "cudaMemcpyAsync");
    });
    copyRate_ = traffic / copied;
    add("device-to-device copy, 512 MiB", copied, traffic);
    cuda::LoopArgs args{};
    args.sources[0] = from.as();
    args.destinations[0] = to.as();
    args.sourceCount = args.destinationCount = 1;
    args.count = bytes;
    add("copy loop, 512 MiB", timeLoop(cuda::copyKernel(), args), traffic, 0.90);
  }

  double timeLoop(cuda::LoopKernel kernel, cuda::LoopArgs args) {
    void* pointers[] = {&args};
    const dim3 blocks(divisor_ == 1 ? static_cast<unsigned>(2 * properties_.multiProcessorCount) : 2);
    return stream_->time(repeats(10), [&] {
      checkCuda(cudaLaunchKernel(kernel, blocks, dim3(kLoopThreads), pointers, 0, stream_->get()),
                "cudaLaunchKernel");
    });
  }

  void reductions() {
    const size_t bytes = scaled(128 * kMiB);
    std::vector<Memory> arrays;
    for (int i = 0; i < 9; ++i) {
      arrays.emplace_back(bytes);
    }
    const struct {
      pealDataType_t type;
      const char* name;
      size_t bytes;
    } types[] = {{pealFloat32, "float", 4}, {pealBfloat16, "bfloat16", 2}, {pealFloat8e4m3, "f8e4m3", 1}};
    for (const auto& type : types) {
      for (const int sources : {2, 8}) {
        cuda::LoopArgs args{};
        for (int i = 0; i < sources; ++i) {
          args.sources[i] = arrays[static_cast<size_t>(i)].as();
        }
        args.destinations[0] = arrays[8].as();
        args.sourceCount = sources;
        args.destinationCount = 1;
        args.op = pealSum;
        args.rawSource = -1;
        args.count = bytes / type.bytes;
        const auto target = sources == 2 && type.bytes > 1 ? std::optional<double>(0.85) : std::nullopt;
        add(fmt::format("sum of {} arrays of {}, 128 MiB each", sources, type.name),
            timeLoop(cuda::reduceKernelFor(type.type), args), (sources + 1.0) * static_cast<double>(bytes),
            target);
      }
    }
  }

  void adamw(size_t elements) {
    size_t available = 0;
    size_t total = 0;
    checkCuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    if (available < elements * 17) {
      fmt::print("# AdamW of {} elements: skipped, {} bytes of the device are free\n", elements, available);
      return;
    }
    const Memory gradient(elements * 2), weight(elements * 2), master(elements * 4), moment1(elements * 4),
        moment2(elements * 4), control(sizeof(pealAdamwControl_t));
    const pealAdamwControl_t start{0, 1e-3, 1, 0, 0};
    checkCuda(cudaMemcpy(control.as(), &start, sizeof start, cudaMemcpyHostToDevice), "cudaMemcpy");
    pealAdamw_t state{};
    state.beta1 = 0.9;
    state.beta2 = 0.999;
    state.epsilon = 1e-8;
    state.master = master.as<float>();
    state.moment1 = moment1.as<float>();
    state.moment2 = moment2.as<float>();
    state.count = elements;
    state.control = control.as<pealAdamwControl_t>();
    const double seconds = stream_->time(repeats(5), [&] {
      checkPeal(pealAdamwStep(gradient.as(), weight.as(), &state, 0, stream_->peal()), "pealAdamwStep");
    });
    add(fmt::format("AdamW, {:.0e} elements", static_cast<double>(elements * divisor_)), seconds,
        28.0 * static_cast<double>(elements), 0.90);
  }

  // Of `ranks` communicators on this GPU. Traffic of a two-shot all-reduce of S bytes, all ranks together: N
  // S and S read and written by the reduction, (N - 1) S read and N S - S written by the gather: (3N - 1) S,
  // each rank's own result counted once.
  void allReduces(int ranks) {
    const std::vector<int> devices(static_cast<size_t>(ranks), 0);
    std::vector<pealComm_t> comms(static_cast<size_t>(ranks));
    checkPeal(pealCommInitAll(comms.data(), ranks, devices.data()), "pealCommInitAll");
    const size_t most = scaled(64 * kMiB);
    std::vector<void*> sends(comms.size()), receives(comms.size()), handles(2 * comms.size());
    for (size_t r = 0; r < comms.size(); ++r) {
      checkPeal(pealMemAllocDevice(&sends[r], most, 0), "pealMemAllocDevice");
      checkPeal(pealMemAllocDevice(&receives[r], most, 0), "pealMemAllocDevice");
      checkPeal(pealCommRegister(comms[r], sends[r], most, &handles[2 * r]), "pealCommRegister", comms[r]);
      checkPeal(pealCommRegister(comms[r], receives[r], most, &handles[2 * r + 1]), "pealCommRegister",
                comms[r]);
    }
    const auto call = [&](size_t bytes) {
      checkPeal(pealGroupStart(), "pealGroupStart");
      for (size_t r = 0; r < comms.size(); ++r) {
        checkPeal(
            pealAllReduce(sends[r], receives[r], bytes / 4, pealFloat32, pealSum, comms[r], stream_->peal()),
            "pealAllReduce", comms[r]);
      }
      checkPeal(pealGroupEnd(), "pealGroupEnd");
    };
    add(fmt::format("all-reduce of {} ranks on this GPU, 8 KiB, eager", ranks),
        stream_->time(repeats(50), [&] { call(scaled(8 << 10)); }), 0);
    add(fmt::format("all-reduce of {} ranks on this GPU, 8 KiB, in a graph", ranks),
        stream_->timeGraph(repeats(50), [&] { call(scaled(8 << 10)); }), 0);
    if (ranks == 8) {
      rows_.back().targetSeconds = 6e-6;
    }
    for (const size_t mebibytes : {size_t{1}, size_t{64}}) {
      const size_t bytes = scaled(mebibytes * kMiB);
      add(fmt::format("all-reduce of {} ranks on this GPU, {} MiB", ranks, mebibytes),
          stream_->time(repeats(10), [&] { call(bytes); }), (3.0 * ranks - 1) * static_cast<double>(bytes));
    }
    for (size_t r = 0; r < comms.size(); ++r) {
      pealResult_t state = pealSuccess;
      checkPeal(pealCommGetAsyncError(comms[r], &state), "pealCommGetAsyncError", comms[r]);
      checkPeal(state, "an all-reduce", comms[r]);
    }
    for (size_t r = 0; r < comms.size(); ++r) {
      checkPeal(pealCommDeregister(comms[r], handles[2 * r]), "pealCommDeregister", comms[r]);
      checkPeal(pealCommDeregister(comms[r], handles[2 * r + 1]), "pealCommDeregister", comms[r]);
    }
    for (size_t r = 0; r < comms.size(); ++r) {
      checkPeal(pealCommDestroy(comms[r]), "pealCommDestroy");
      pealMemFree(sends[r]);
      pealMemFree(receives[r]);
    }
  }

  const size_t divisor_;
  cudaDeviceProp properties_{};
  std::optional<Stream> stream_;
  double copyRate_ = 1;
  std::vector<Row> rows_;
};

}  // namespace
}  // namespace peal::gpubench

int main(int argc, char** argv) {
  try {
    peal::gpubench::Bench bench(argc > 2 ? std::stoul(argv[2]) : 1);
    const bool good = bench.runAll();
    bench.print();
    if (argc > 1) {
      std::ofstream file(argv[1]);
      file << bench.json().dump(2) << "\n";
      file.close();
      if (!file) {
        throw std::runtime_error(fmt::format("cannot write {}", argv[1]));
      }
    }
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_bench: {}\n", error.what());
    return 1;
  }
}

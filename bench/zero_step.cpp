// zero_step: the fused optimizer step (pealReduceAdamwGather) beside what it replaces.
//
// In one run, in alternation, medians: (a) fused; (b) separate: pealReduceScatterV, pealAdamwStep,
// pealAllGatherV; (c) pealAllReduce of the same bf16 bytes; (d) the bound: bytes that must move over the
// bandwidth of a stream that every rank runs at the same time. For P parameters on N ranks of one machine, in
// bytes:
//
//   2 N P      all gradients are read once, where their sum is formed
//   24 P       master and both moments, fp32, read and written
//   2 N P      every rank's copy of the weights is written
//   2 (N-1) P  and read from its owner by the others
//
// so (22 + 6 N) P; the stream is a[i] = b[i] + s c[i], 12 bytes an element, over arrays of fp32. Between
// hosts the bound says nothing of the wire: there fused / all-reduce counts.
//
// (f) what the engine makes of it, peal::zero::Engine at stage 1 with one bucket, from the gradient's
// readiness until the weights can be read: a step that was announced, and so fused, beside one that was not
// ("eng fus/sep"). It counts squares for the norm, too, and its ranks agree by one small all-reduce more.
//
// (e) the update of (b) alone. A fused step does what an all-reduce does and an update, so their sum over
// (b), "parts", is what it can reach where a core does one thing after the other.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "peal/adamw.h"
#include "peal/zero.hpp"
#include "tools/common/arguments.h"
#include "tools/common/error.h"
#include "tools/common/ranks.h"

namespace {

using namespace peal::tools;

struct ZeroStepOptions {
  RankOptions ranks;
  std::vector<size_t> mebibytes{1, 16, 64};
  int iterations = 9, warmUp = 2;
  bool unregistered = false;
  std::string jsonPath;
};

// Memory that peers can read in place, or (unregistered) cannot.
template <class T>
class Array {
 public:
  Array(size_t count, bool shared) : own_(shared ? 0 : count), count_(count) {
    if (shared) {
      check(pealMemAlloc(&shared_, std::max<size_t>(count * sizeof(T), 1)), "pealMemAlloc");
    }
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() {
    if (shared_ != nullptr) {
      pealMemFree(shared_);
    }
  }
  T* data() { return shared_ != nullptr ? static_cast<T*>(shared_) : own_.data(); }
  void fill(T value) { std::fill_n(data(), count_, value); }

 private:
  std::vector<T> own_;
  size_t count_;
  void* shared_ = nullptr;
};

// The optimizer's state of this rank's block.
struct StateOfShard {
  explicit StateOfShard(size_t count) : master(count, 0.5f), moment1(count), moment2(count) {}
  pealAdamw_t view() {
    return {0.9, 0.95, 1e-8, master.data(), moment1.data(), moment2.data(), master.size(), nullptr, 0,
            0,   0,    0,    &control,      nullptr};
  }
  std::vector<float> master, moment1, moment2;
  pealAdamwControl_t control{0, 1e-3, 1.0 / 64, 0, 0};
};

// A step of the engine on one bucket of bf16 gradients.
class EngineStep {
 public:
  enum class Announced { No, Yes };
  EngineStep(pealComm_t comm, size_t parameters, Announced announced)
      : engine_(comm, options(parameters)), parameters_(parameters), announced_(announced) {
    const std::vector<float> initial(parameters, 0.5f);  // read by seal
    engine_.setInitial(engine_.addParameter("weights", parameters, 0, pealZeroNoDecay), initial.data());
    engine_.seal();
    readWeights();
  }
  void prepare(const uint16_t* gradients) {
    if (announced_ == Announced::Yes) {
      engine_.expectStep(1e-3, 64);
    }
    engine_.enter(0, pealZeroBackward);
    std::copy_n(gradients, parameters_, engine_.gradient(0));
  }
  void run() {
    engine_.gradientReady(0);
    engine_.leave(0, pealZeroBackward);
    engine_.endMicroBatch();
    engine_.step(1e-3, 64);
    readWeights();
  }
  bool fuses() const { return engine_.fusedStatus().fusedBuckets == 1; }
  bool hasTheWeightsOf(EngineStep& other) {
    engine_.enter(0, pealZeroForward);
    other.engine_.enter(0, pealZeroForward);
    const uint16_t* const weights = engine_.weights(0);
    const bool same = std::equal(weights, weights + parameters_, other.engine_.weights(0));
    engine_.leave(0, pealZeroForward);
    other.engine_.leave(0, pealZeroForward);
    return same;
  }

 private:
  static pealZeroOptions_t options(size_t parameters) {
    pealZeroOptions_t options = peal::zero::defaultOptions();
    options.stage = 1;
    options.skipNonFinite = 0;
    options.bucketBytes = 2 * parameters;
    return options;
  }
  void readWeights() {
    engine_.enter(0, pealZeroForward);
    engine_.leave(0, pealZeroForward);
  }
  peal::zero::Engine engine_;
  const size_t parameters_;
  const Announced announced_;
};

using Seconds = std::chrono::duration<double>;

class ZeroStepBench {
 public:
  ZeroStepBench(const ZeroStepOptions& options, const RankContext& context)
      : options_(options), context_(context) {}

  void run() {
    if (context_.rank == 0) {
      fmt::print(
          "# zero_step: {} ranks, {} buffers, median of {} in alternation; times in ms\n"
          "# bound: (22 + 6 N) P bytes, P parameters, over the stream's bandwidth of all ranks together\n"
          "# parts: update and allreduce, which a fused step must do, over separate\n"
          "{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>7} {:>7} {:>9} {:>8} {:>9} {:>9} {:>11}\n",
          context_.size, options_.unregistered ? "unregistered" : "registered", options_.iterations,
          "bf16 MiB", "fused", "separate", "update", "allreduce", "bound", "stream GB/s", "fus/sep", "parts",
          "fus/bound", "fus/allr", "eng fused", "eng sep", "eng fus/sep");
    }
    for (const size_t mebibytes : options_.mebibytes) {
      runSize(mebibytes);
    }
    if (context_.rank == 0 && !options_.jsonPath.empty()) {
      std::ofstream file(options_.jsonPath);
      file << report_.dump(2) << "\n";
      if (!file.flush()) {
        throw ToolError(fmt::format("cannot write {}", options_.jsonPath));
      }
    }
  }

 private:
  // The slowest rank's time, from a common start.
  double timed(const std::function<void()>& body) {
    check(pealBarrier(context_.comm, nullptr), "pealBarrier", context_.comm);
    const auto begin = std::chrono::steady_clock::now();
    body();
    return slowest(Seconds(std::chrono::steady_clock::now() - begin).count());
  }

  double slowest(double seconds) {
    check(pealAllReduce(&seconds, &seconds, 1, pealFloat64, pealMax, context_.comm, nullptr), "pealAllReduce",
          context_.comm);
    return seconds;
  }

  void runSize(size_t mebibytes) {
    const size_t parameters = mebibytes << 19, n = static_cast<size_t>(context_.size);
    const auto own = static_cast<size_t>(context_.rank);
    const size_t even = parameters / n;
    std::vector<size_t> counts(n, even);
    counts[n - 1] += parameters % n;
    const bool shared = !options_.unregistered;
    Array<uint16_t> gradients(parameters, shared), weights(parameters, shared), other(parameters, shared),
        sums(parameters, shared);
    for (size_t i = 0; i < parameters; ++i) {  // bf16 of small numbers
      gradients.data()[i] = static_cast<uint16_t>(0x3c00 + (i * 37 + own * 11) % 255);
    }
    weights.fill(0);
    other.fill(0);
    sums.fill(0);
    StateOfShard fused(counts[own]), separate(counts[own]);
    // As much for every rank as its state takes, and at least more than any cache of its own.
    const size_t streamed = std::max<size_t>(3 * parameters / n, size_t{1} << 20);
    std::vector<float> a(streamed), b(streamed, 1), c(streamed, 2);
    const pealAdamw_t fusedState = fused.view(), separateState = separate.view();
    uint16_t* block = other.data() + even * own;
    double update = 0;  // of the last separate step
    EngineStep engineFused(context_.comm, parameters, EngineStep::Announced::Yes);
    EngineStep engineSeparate(context_.comm, parameters, EngineStep::Announced::No);
    const std::array<std::function<void()>, 6> bodies{
        [&] {
          check(pealReduceAdamwGather(gradients.data(), weights.data(), counts.data(), &fusedState,
                                      context_.comm, nullptr),
                "pealReduceAdamwGather", context_.comm);
        },
        [&] {
          check(pealReduceScatterV(gradients.data(), block, counts.data(), pealBfloat16, pealSum,
                                   context_.comm, nullptr),
                "pealReduceScatterV", context_.comm);
          const auto begin = std::chrono::steady_clock::now();
          check(pealAdamwStep(block, block, &separateState, PEAL_DEVICE_HOST, nullptr), "pealAdamwStep");
          update = Seconds(std::chrono::steady_clock::now() - begin).count();
          check(pealAllGatherV(block, other.data(), counts.data(), pealBfloat16, context_.comm, nullptr),
                "pealAllGatherV", context_.comm);
        },
        [&] {
          check(pealAllReduce(gradients.data(), sums.data(), parameters, pealBfloat16, pealSum, context_.comm,
                              nullptr),
                "pealAllReduce", context_.comm);
        },
        [&] {
          for (size_t i = 0; i < streamed; ++i) {
            a[i] = b[i] + 0.5f * c[i];
          }
          sink_ = sink_ + a[streamed / 2];
        },
        [&] { engineFused.run(); },
        [&] { engineSeparate.run(); }};
    constexpr size_t kUpdate = bodies.size();
    std::array<std::vector<double>, kUpdate + 1> times;
    for (int round = -options_.warmUp; round < options_.iterations; ++round) {
      engineFused.prepare(gradients.data());
      engineSeparate.prepare(gradients.data());
      for (size_t kind = 0; kind < bodies.size(); ++kind) {
        const double seconds = timed(bodies[kind]);
        if (round >= 0) {
          times[kind].push_back(seconds);
        }
      }
      if (round >= 0) {
        times[kUpdate].push_back(slowest(update));
      }
    }
    if (!std::equal(weights.data(), weights.data() + parameters, other.data())) {
      throw ToolError(fmt::format("rank {}: the fused step's weights are not the separate path's at {} MiB",
                                  context_.rank, mebibytes));
    }
    if (!engineFused.fuses() || !engineFused.hasTheWeightsOf(engineSeparate)) {
      throw ToolError(
          fmt::format("rank {}: the engine's announced step is not fused, or its weights are not "
                      "those of two phases at {} MiB",
                      context_.rank, mebibytes));
    }
    std::array<double, kUpdate + 1> median{};
    for (size_t kind = 0; kind < times.size(); ++kind) {
      std::vector<double>& all = times[kind];
      std::nth_element(all.begin(), all.begin() + static_cast<ptrdiff_t>(all.size() / 2), all.end());
      median[kind] = all[all.size() / 2];
    }
    const double stream = 12.0 * static_cast<double>(streamed * n) / median[3];
    const double bytes = (22 + 6 * static_cast<double>(n)) * static_cast<double>(parameters);
    const double bound = bytes / stream;
    if (context_.rank == 0) {
      fmt::print(
          "{:>9} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>11.2f} {:>7.3f} {:>7.3f} {:>9.3f} "
          "{:>8.3f} {:>9.3f} {:>9.3f} {:>11.3f}\n",
          mebibytes, median[0] * 1e3, median[1] * 1e3, median[kUpdate] * 1e3, median[2] * 1e3, bound * 1e3,
          stream / 1e9, median[0] / median[1], (median[kUpdate] + median[2]) / median[1], median[0] / bound,
          median[0] / median[2], median[4] * 1e3, median[5] * 1e3, median[4] / median[5]);
      report_["results"].push_back({{"bytes", parameters * 2},
                                    {"ranks", context_.size},
                                    {"fusedMs", median[0] * 1e3},
                                    {"separateMs", median[1] * 1e3},
                                    {"updateMs", median[kUpdate] * 1e3},
                                    {"allReduceMs", median[2] * 1e3},
                                    {"boundMs", bound * 1e3},
                                    {"engineFusedMs", median[4] * 1e3},
                                    {"engineSeparateMs", median[5] * 1e3},
                                    {"streamBytesPerSecond", stream}});
    }
  }

  const ZeroStepOptions& options_;
  const RankContext& context_;
  volatile float sink_ = 0;
  nlohmann::json report_;
};

}  // namespace

int main(int argc, char** argv) {
  return guard("zero_step", [&] {
    ZeroStepOptions options;
    CLI::App app("The fused optimizer step beside the separate path, the bare all-reduce and the bound.");
    addRanksOption(app, options.ranks);
    app.add_option("-s,--mebibytes", options.mebibytes, "MiB of bf16 gradients")->check(CLI::Range(1, 65536));
    app.add_option("-n,--iters", options.iterations, "Timed rounds of the alternation")
        ->check(CLI::Range(1, 100000));
    app.add_option("-w,--warmup_iters", options.warmUp, "Rounds before")->check(CLI::Range(0, 100000));
    app.add_flag("--unregistered", options.unregistered, "Buffers that peers cannot read in place");
    app.add_option("-J,--json", options.jsonPath, "Also write the results to this file")->type_name("FILE");
    if (const std::optional<int> code = parseArguments(app, argc, argv)) {
      return *code;
    }
    RankSetup setup;
    setup.config.commName = "zero_step";
    return runRanks(options.ranks, setup, [&](RankContext& context) {
      ZeroStepBench(options, context).run();
      return 0;
    });
  });
}

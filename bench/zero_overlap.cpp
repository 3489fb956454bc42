// zero_overlap: how much of ZeRO's communication hides behind computing, against the size of a bucket, beside
// the planner's timeline model (docs/ZERO-ENGINE.md).
//
// The engine is real, and so is every message; the mathematics is pretended: a rank sleeps (or with --compute
// busy spins) for as long as F FLOP/s take for T tokens, 2 P T FLOP forward and 4 P T backward, parameter by
// parameter, and hands its gradient over after each. A rank that sleeps stands for one whose GPU computes,
// and leaves its core to the communication. Between hosts on a paced link:
//
//   tools/hosts/hosts.py --ranks 1,1 --rate 1gbit -- build/release/bench/zero_overlap
//
// For every size of bucket the reductions and gatherings of a step are first timed alone, one after another:
// that is the W that the planner gets. At stage 3, where a unit is what is gathered and reduced at once, the
// model is cut into units of that size in place of --units. Loads are multiples of T*, the least tokens with
// which the planner says that all but one bucket of each pass hides. Measured: for how long callers waited
// for communication in a step, as the engine counts it (pealZeroReport_t::waitSeconds); the median of some
// steps on the rank that waited most.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "peal/zero.hpp"
#include "tools/common/arguments.h"
#include "tools/common/error.h"
#include "tools/common/ranks.h"

namespace {

using namespace peal::tools;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

enum class Compute { Sleep, Busy };

struct OverlapOptions {
  RankOptions ranks;
  uint64_t parameters = uint64_t{4} << 20;
  int units = 16, parametersOfUnit = 4;
  int stage = 1;
  std::vector<size_t> bucketKibibytes{256, 512, 1024, 2048, 4096};
  std::vector<double> loads{0.5, 1, 2};
  double flops = 1e12;
  int iterations = 7;
  Compute compute = Compute::Sleep;
  std::string jsonPath;
};

constexpr int kCalibrations = 5, kMostUnits = 4096;
constexpr double kLearningRate = 1e-3;

double secondsSince(Clock::time_point begin) { return Seconds(Clock::now() - begin).count(); }

double medianOf(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// What a case showed, in seconds of a step.
struct Measured {
  uint64_t buckets = 0;
  double wait = 0, communication = 0, step = 0, compute = 0;
};

// What the planner says of it.
struct Predicted {
  double exposed = 0, communication = 0, tokensToHide = 0;
};

class OverlapBench {
 public:
  OverlapBench(const OverlapOptions& options, const RankContext& context)
      : options_(options), context_(context) {}

  void run() {
    std::vector<double> rates;
    for (const size_t kibibytes : options_.bucketKibibytes) {
      cut(kibibytes << 10);
      rates.push_back(calibrate(kibibytes << 10));
    }
    const double best = *std::max_element(rates.begin(), rates.end());
    const double tokensToHide = predict(1, 1, best).tokensToHide;
    printHead(best, tokensToHide);
    for (const double load : options_.loads) {
      for (size_t i = 0; i < rates.size(); ++i) {
        const double tokens = load * tokensToHide;
        const size_t bucketBytes = options_.bucketKibibytes[i] << 10;
        cut(bucketBytes);
        const Measured measured = measure(bucketBytes, tokens);
        report(load, tokens, bucketBytes, rates[i], measured, predict(measured.buckets, tokens, rates[i]));
      }
    }
    writeJson();
  }

 private:
  // Divides the model into units and tensors of one size.
  void cut(size_t bucketBytes) {
    units_ =
        options_.stage < 3
            ? options_.units
            : static_cast<int>(std::clamp<uint64_t>(2 * options_.parameters / bucketBytes, 1, kMostUnits));
    const auto tensors = static_cast<uint64_t>(units_ * options_.parametersOfUnit);
    elements_ = options_.parameters / tensors;
    if (elements_ == 0) {
      throw UsageError(
          fmt::format("{} parameters are fewer than the {} tensors", options_.parameters, tensors));
    }
    all_ = elements_ * tensors;
  }

  // The largest of all ranks.
  double most(double value) {
    check(pealAllReduce(&value, &value, 1, pealFloat64, pealMax, context_.comm, nullptr), "pealAllReduce",
          context_.comm);
    return value;
  }

  // Bytes per second of what a step sends in buckets of this size, with nothing beside it. 1 rank: none.
  double calibrate(size_t bucketBytes) {
    const auto n = static_cast<size_t>(context_.size);
    const size_t elements = std::min<size_t>(std::max(bucketBytes / 2, elements_), all_);
    const size_t buckets = (all_ + elements - 1) / elements;
    std::vector<size_t> counts(n, elements / n);
    counts[0] += elements % n;
    std::vector<uint16_t> values(elements), sums(elements);
    const size_t begin = std::accumulate(counts.begin(), counts.begin() + context_.rank, size_t{0});
    std::vector<double> times;
    for (int round = 0; round < kCalibrations; ++round) {
      check(pealBarrier(context_.comm, nullptr), "pealBarrier", context_.comm);
      const Clock::time_point start = Clock::now();
      for (size_t bucket = 0; bucket < buckets; ++bucket) {
        if (options_.stage == 0) {
          check(pealAllReduce(values.data(), sums.data(), elements, pealBfloat16, pealSum, context_.comm,
                              nullptr),
                "pealAllReduce", context_.comm);
          continue;
        }
        if (options_.stage == 3) {
          gather(sums.data(), begin, counts);
        }
        check(pealReduceScatterV(values.data(), sums.data() + begin, counts.data(), pealBfloat16, pealSum,
                                 context_.comm, nullptr),
              "pealReduceScatterV", context_.comm);
        gather(sums.data(), begin, counts);
      }
      times.push_back(most(secondsSince(start)));
    }
    const double bytesOfElement = options_.stage == 3 ? 6 : 4;
    const double bytes = bytesOfElement * static_cast<double>(buckets * elements) *
                         static_cast<double>(n - 1) / static_cast<double>(n);
    return bytes / medianOf(times);
  }

  void gather(uint16_t* values, size_t begin, const std::vector<size_t>& counts) {
    check(pealAllGatherV(values + begin, values, counts.data(), pealBfloat16, context_.comm, nullptr),
          "pealAllGatherV", context_.comm);
  }

  Predicted predict(uint64_t buckets, double tokens, double bytesPerSecond) const {
    pealZeroPlanInput_t input = PEAL_ZERO_PLAN_INITIALIZER;
    input.parameters = all_;
    input.ranks = context_.size;
    input.buckets = buckets;
    input.units = buckets;  // at stage 3
    input.reshardAfterForward = 1;
    input.tokens = tokens;
    input.flopsPerSecond = options_.flops;
    input.networkBytesPerSecond = bytesPerSecond;
    const pealZeroPlan_t plan = peal::zero::plan(input);
    const pealZeroPlanStage_t& row = plan.stages[options_.stage];
    return {row.exposedSeconds, row.communicationSeconds, row.tokensToHide};
  }

  void compute(double seconds) {
    const Clock::time_point start = Clock::now();
    const auto end = start + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
    if (options_.compute == Compute::Sleep) {
      std::this_thread::sleep_until(end);
    } else {
      while (Clock::now() < end) {
      }
    }
    computed_ += secondsSince(start);
  }

  void forward(peal::zero::Engine& engine, double seconds) {
    for (int unit = 0; unit < units_; ++unit) {
      engine.enter(unit, pealZeroForward);
      compute(seconds / units_);
      engine.leave(unit, pealZeroForward);
    }
  }

  void backward(peal::zero::Engine& engine, double seconds) {
    for (int unit = units_ - 1; unit >= 0; --unit) {
      engine.enter(unit, pealZeroBackward);
      for (int i = options_.parametersOfUnit - 1; i >= 0; --i) {
        const int id = unit * options_.parametersOfUnit + i;
        std::memset(engine.gradient(id), 0, 2 * elements_);
        compute(seconds / (units_ * options_.parametersOfUnit));
        engine.gradientReady(id);
      }
      engine.leave(unit, pealZeroBackward);
    }
    engine.endMicroBatch();
  }

  Measured measure(size_t bucketBytes, double tokens) {
    pealZeroOptions_t zero = peal::zero::defaultOptions();
    zero.stage = options_.stage;
    zero.bucketBytes = bucketBytes;
    peal::zero::Engine engine(context_.comm, zero);
    const std::vector<float> ones(elements_, 1);
    for (int unit = 0; unit < units_; ++unit) {
      for (int i = 0; i < options_.parametersOfUnit; ++i) {
        engine.setInitial(engine.addParameter(fmt::format("p{}.{}", unit, i), elements_, unit, pealZeroDecay),
                          ones.data());
      }
    }
    engine.seal();
    const double forwardSeconds = 2 * static_cast<double>(all_) * tokens / options_.flops;
    std::vector<double> waits, communications, steps, computes;
    // The first step is the one whose gathering the second waits for.
    for (int step = -1; step < options_.iterations; ++step) {
      computed_ = 0;
      const Clock::time_point start = Clock::now();
      forward(engine, forwardSeconds);
      backward(engine, 2 * forwardSeconds);
      const pealZeroReport_t report = engine.step(kLearningRate, 1);
      if (step >= 0) {
        steps.push_back(secondsSince(start));
        waits.push_back(report.waitSeconds);
        communications.push_back(report.communicationSeconds);
        computes.push_back(computed_);
      }
    }
    const uint64_t buckets =
        options_.stage < 3 ? engine.fusedStatus().buckets : static_cast<uint64_t>(units_);
    return {buckets, most(medianOf(waits)), most(medianOf(communications)), most(medianOf(steps)),
            most(medianOf(computes))};
  }

  void printHead(double bytesPerSecond, double tokensToHide) {
    report_ = {{"ranks", context_.size},
               {"stage", options_.stage},
               {"parameters", options_.parameters},
               {"flops", options_.flops},
               {"bytesPerSecond", bytesPerSecond},
               {"tokensToHide", tokensToHide},
               {"compute", options_.compute == Compute::Sleep ? "sleep" : "busy"},
               {"results", nlohmann::json::array()}};
    if (context_.rank == 0) {
      fmt::print(
          "# zero_overlap: {} ranks, stage {}, {} parameters; computing is {}\n"
          "# W: {:.1f} MB/s measured alone; F: {:.3g} FLOP/s; T* = {:.0f} tokens; times of a step in ms, "
          "median of "
          "{}\n"
          "# predicted, exposed: what is not hidden; one bucket: the time of one of each pass\n"
          "{:>5} {:>10} {:>8} {:>9} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9}\n",
          context_.size, options_.stage, options_.parameters,
          options_.compute == Compute::Sleep ? "sleeping" : "spinning", bytesPerSecond / 1e6, options_.flops,
          tokensToHide, options_.iterations, "T/T*", "bucket KiB", "buckets", "sending", "computing",
          "predicted", "exposed", "one bucket", "hidden %", "step");
    }
  }

  void report(double load, double tokens, size_t bucketBytes, double bytesPerSecond, const Measured& measured,
              const Predicted& predicted) {
    const double oneBucket = predicted.communication / static_cast<double>(measured.buckets);
    const double hidden =
        measured.communication > 0 ? 1 - std::min(1.0, measured.wait / measured.communication) : 0;
    report_["results"].push_back({{"load", load},
                                  {"tokens", tokens},
                                  {"bucketBytes", bucketBytes},
                                  {"parameters", all_},
                                  {"buckets", measured.buckets},
                                  {"bytesPerSecond", bytesPerSecond},
                                  {"predictedExposedMs", predicted.exposed * 1e3},
                                  {"predictedCommunicationMs", predicted.communication * 1e3},
                                  {"oneBucketMs", oneBucket * 1e3},
                                  {"exposedMs", measured.wait * 1e3},
                                  {"communicationMs", measured.communication * 1e3},
                                  {"hiddenShare", hidden},
                                  {"computeMs", measured.compute * 1e3},
                                  {"stepMs", measured.step * 1e3}});
    if (context_.rank == 0) {
      fmt::print("{:>5.2f} {:>10} {:>8} {:>9.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>9.1f} {:>9.1f}\n",
                 load, bucketBytes >> 10, measured.buckets, predicted.communication * 1e3,
                 measured.compute * 1e3, predicted.exposed * 1e3, measured.wait * 1e3, oneBucket * 1e3,
                 hidden * 100, measured.step * 1e3);
    }
  }

  void writeJson() {
    if (context_.rank != 0 || options_.jsonPath.empty()) {
      return;
    }
    std::ofstream file(options_.jsonPath);
    file << report_.dump(2) << "\n";
    if (!file.flush()) {
      throw ToolError(fmt::format("cannot write {}", options_.jsonPath));
    }
  }

  const OverlapOptions& options_;
  const RankContext& context_;
  int units_ = 0;
  uint64_t elements_ = 0, all_ = 0;  // of a parameter, of the model
  double computed_ = 0;              // in this step
  nlohmann::json report_;
};

}  // namespace

int main(int argc, char** argv) {
  return guard("zero_overlap", [&] {
    OverlapOptions options;
    CLI::App app("ZeRO's exposed communication against bucket size, beside the planner's timeline model.");
    addRanksOption(app, options.ranks);
    app.add_option("-p,--parameters", options.parameters, "of the model")
        ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 36))
        ->capture_default_str();
    app.add_option("--units", options.units, "blocks of the model, at stages 0 to 2")
        ->check(CLI::Range(1, kMostUnits));
    app.add_option("--tensors", options.parametersOfUnit, "parameters of a unit, all of one size")
        ->check(CLI::Range(1, 64));
    app.add_option("--stage", options.stage, "of ZeRO; at 3 a bucket is a unit")->check(CLI::Range(0, 3));
    app.add_option("-s,--bucket-kib", options.bucketKibibytes, "sizes of a bucket in KiB")
        ->check(CLI::Range(1, 1 << 22));
    app.add_option("-t,--loads", options.loads, "tokens of a rank, as multiples of T*")
        ->check(CLI::Range(0.001, 1000.0));
    app.add_option("--flops", options.flops, "FLOP/s that a rank pretends to reach: the unit of T*")
        ->check(CLI::Range(1e6, 1e18));
    app.add_option("--compute", options.compute, "sleep or busy: what a rank does for that long")
        ->transform(oneOf<Compute>({{"sleep", Compute::Sleep}, {"busy", Compute::Busy}}));
    app.add_option("-n,--iters", options.iterations, "steps of each case")->check(CLI::Range(1, 100000));
    app.add_option("-J,--json", options.jsonPath, "Also write the results to this file")->type_name("FILE");
    if (const std::optional<int> code = parseArguments(app, argc, argv)) {
      return *code;
    }
    RankSetup setup;
    setup.config.commName = "zero_overlap";
    setup.config.deterministic = 1;  // as the engine's own communicator
    return runRanks(options.ranks, setup, [&](RankContext& context) {
      if (context.size == 1) {
        throw UsageError("zero_overlap needs at least 2 ranks: one rank alone sends nothing; try --ranks 2");
      }
      OverlapBench(options, context).run();
      return 0;
    });
  });
}

#include "bench/harness/options.h"

#include <fmt/format.h>

#include <limits>

#include "bench/harness/gpu.h"
#include "tools/common/arguments.h"
#include "tools/common/error.h"
#include "tools/common/plot.h"
#include "tools/common/sizes.h"

namespace peal::bench {
namespace {

// What CLI11 fills before it is understood.
struct Texts {
  std::string minBytes = "32M", maxBytes = "32M", stepBytes = "1M";
  std::string combine = "sum", type = "float", root = "0";
  int average = 1, blocking = 0, localRegister = 0, streamNull = 1, places = -1;
  bool stream = false;
  std::string device = "host";
  double minBandwidth = -1, ncclMinBandwidth = -1;
  int policy = 0, implementation = 0, blocks = 16;
};

CLI::Range atLeast(int least) { return {least, std::numeric_limits<int>::max()}; }

void addRankFlags(CLI::App& app, Options& options, Texts& texts) {
  app.add_option("-t,--nthreads", options.threads, "Ranks: this many threads, times -g")
      ->check(CLI::Range(1, 4096));
  app.add_option("-g,--ngpus", options.gpus, "Ranks: this many threads, times -t")
      ->check(CLI::Range(1, 4096));
  tools::addRanksOption(app, options.ranks);
  app.add_option("--device", texts.device,
                 "host, a GPU's number for all ranks, or auto: rank k of a machine is on GPU k modulo their "
                 "number")
      ->capture_default_str();
  app.add_option("-p,--parallel_init", options.parallelInit, "1: threads join by themselves, all at once");
}

void addSizeFlags(CLI::App& app, Options& options, Texts& texts) {
  app.add_option("-b,--minbytes", texts.minBytes, "Smallest size: 8, 64K, 32M, 1G")->capture_default_str();
  app.add_option("-e,--maxbytes", texts.maxBytes, "Largest size")->capture_default_str();
  app.add_option("-i,--stepbytes", texts.stepBytes, "From size to size: add this")->capture_default_str();
  app.add_option("-f,--stepfactor", options.stepFactor,
                 "From size to size: multiply by this; 0 and 1 mean -i");
}

void addOperationFlags(CLI::App& app, Options& options, Texts& texts) {
  app.add_option("-o,--op", texts.combine, "sum, prod, max, min, avg, mulsum or all")->capture_default_str();
  app.add_option("-d,--datatype", texts.type, "float, bfloat16, half, int8 ... or all")
      ->capture_default_str();
  app.add_option("-r,--root", texts.root, "Root of broadcast and reduce; all (or -1): each in turn")
      ->capture_default_str();
  app.add_option("-R,--local_register", texts.localRegister,
                 "0: plain memory; 1, 2: memory that peers read in place")
      ->check(CLI::Range(0, 2))
      ->capture_default_str();
  app.add_option("-O,--out_of_place", texts.places,
                 "0: only in place; 1: only out of place; both if not given")
      ->check(CLI::Range(0, 1));
  app.add_option("-u,--unalign", options.unalign, "Shift the buffers by this many elements")
      ->check(CLI::Range(0, 1 << 20));
  app.add_flag("--deterministic", options.deterministic, "Sums in rank order (pealConfig_t::deterministic)");
}

void addMeasureFlags(CLI::App& app, Options& options, Texts& texts) {
  app.add_option("-n,--iters", options.iterations, "Timed iterations")
      ->check(atLeast(1))
      ->capture_default_str();
  app.add_option("-w,--warmup_iters", options.warmups, "Iterations before, at sizes doubling from -b to -e")
      ->check(atLeast(0))
      ->capture_default_str();
  app.add_option("-m,--agg_iters", options.aggregated, "Calls in one group per iteration")
      ->check(atLeast(1))
      ->capture_default_str();
  app.add_option("-N,--run_cycles", options.cycles, "Passes over all sizes; 0: until interrupted")
      ->check(atLeast(0))
      ->capture_default_str();
  app.add_option("-c,--check", options.checks, "Verified calls after each measurement; 0: none")
      ->check(atLeast(0))
      ->capture_default_str();
  app.add_option("-a,--average", texts.average, "Time reported: 0 rank 0, 1 mean, 2 min, 3 max of all ranks")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("-z,--blocking", texts.blocking,
                 "1: wait and barrier after each call; 2: wait; 3: both after each iteration, not timed")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("-y,--stream_null", texts.streamNull,
                 "1: calls run on the calling thread; 0: on a host stream")
      ->check(CLI::Range(0, 1))
      ->capture_default_str();
  app.add_flag("--stream", texts.stream, "Calls run on a host stream: as -y 0");
  app.add_option("-C,--report_cputime", options.reportCpuTime,
                 "1: report the calling thread's CPU time instead of elapsed time");
  app.add_option("-T,--timeout", options.timeoutSeconds, "Deadline of every wait, in seconds")
      ->check(CLI::Range(0, 2000000));
}

void addReportFlags(CLI::App& app, Options& options, Texts& texts) {
  app.add_option("-S,--report_timestamps", options.reportTimestamps, "1: end each row with the time of day");
  app.add_option("-M,--memory,--memory_report", options.reportMemory, "1: report the memory of each rank");
  app.add_option("-J,--json,--output_file", options.jsonPath, "Write the results to this .json file");
  app.add_option("--plot", options.plotPath, "Draw busbw over size to this .svg, .png or .pdf file");
  const CLI::Validator bandwidth = tools::numberIn(-1, 1e9);  // GB/s; -1, as in nccl-tests: not asked for
  app.add_option("--min_bw", texts.minBandwidth, "Fail below 0.9 times this average busbw in GB/s")
      ->check(bandwidth)
      ->envname("PEAL_TESTS_MIN_BW");
  app.add_option("--nccl_min_bw", texts.ncclMinBandwidth, "As --min_bw, by nccl-tests' variable")
      ->check(bandwidth)
      ->envname("NCCL_TESTS_MIN_BW");
  app.add_option("-G,--cudagraph", options.graphLaunches,
                 "On GPUs: make the iterations a CUDA graph and launch it so often")
      ->check(atLeast(0));
  const std::string unused = "No meaning here; accepted for nccl-tests' scripts";
  app.add_option("-x,--cta_policy", texts.policy, unused);
  app.add_option("-D,--device_implementation", texts.implementation, unused);
  app.add_option("-V,--device_cta_count", texts.blocks, unused);
}

void addRemarks(const CLI::App& app, const Collective& collective, const Texts& texts, Options& options) {
  const auto remark = [&](const char* flag, const char* sentence) {
    if (app.count(flag) != 0) {
      options.remarks.emplace_back(sentence);
    }
  };
  if (options.graphLaunches != 0 && options.device == PEAL_DEVICE_HOST) {
    options.graphLaunches = 0;
    options.remarks.emplace_back("-G: there are no CUDA graphs on host memory; calls are made one by one.");
  }
  remark("-x", "-x: peal has no policies of thread blocks; ignored.");
  if (texts.implementation != 0) {
    options.remarks.emplace_back("-D: kernels of the caller's own are not measured here; ignored.");
  }
  remark("-V", "-V: the number of thread blocks is PEAL_CHANNELS; ignored.");
  if (!collective.reduces) {
    remark("-o", "-o: this operation reduces nothing; ignored.");
  }
  if (!collective.rooted) {
    remark("-r", "-r: this operation has no root; ignored.");
  }
  if (!collective.inPlace) {
    options.remarks.emplace_back(
        "this operation is not defined in place: those columns are 0 and N/A, and no part of the average.");
  }
}

int parseRoot(const std::string& text) {
  if (text == "all") {
    return -1;
  }
  try {
    size_t used = 0;
    const int root = std::stoi(text, &used);
    if (used == text.size() && root >= -1) {
      return root;
    }
  } catch (const std::exception&) {  // no number, or out of range: the sentence below says so
  }
  throw tools::UsageError(fmt::format("root \"{}\" is neither a rank nor all.", text));
}

int parseDevice(const std::string& text) {
  if (text == "host" || text == "auto") {
    return text == "host" ? PEAL_DEVICE_HOST : kDeviceAuto;
  }
  try {
    size_t used = 0;
    const int device = std::stoi(text, &used);
    if (used == text.size() && device >= 0) {
      return device;
    }
  } catch (const std::exception&) {  // no number, or out of range: the sentence below says so
  }
  throw tools::UsageError(fmt::format("--device \"{}\" is neither host, auto nor a GPU's number.", text));
}

void understand(const CLI::App& app, const Collective& collective, const Texts& texts, Options& options) {
  options.minBytes = tools::parseSizeBytes(texts.minBytes, "--minbytes");
  options.maxBytes = tools::parseSizeBytes(texts.maxBytes, "--maxbytes");
  options.stepBytes = tools::parseSizeBytes(texts.stepBytes, "--stepbytes");
  if (options.minBytes > options.maxBytes) {
    throw tools::UsageError(
        fmt::format("--minbytes {} is larger than --maxbytes {}.", texts.minBytes, texts.maxBytes));
  }
  if (options.minBytes < options.maxBytes && options.stepFactor < 2 && options.stepBytes == 0) {
    throw tools::UsageError("--stepbytes 0 never gets from --minbytes to --maxbytes.");
  }
  if (options.minBytes == 0 && options.maxBytes > 0 && options.stepFactor >= 2) {
    throw tools::UsageError(
        "--minbytes 0 times --stepfactor stays 0: start at 1 or more, or use --stepbytes.");
  }
  options.types = parseTypes(texts.type);
  options.combines = collective.reduces ? parseCombines(texts.combine) : std::vector<Combine>{Combine::Copy};
  options.root = collective.rooted ? parseRoot(texts.root) : 0;
  options.device = parseDevice(texts.device);
  options.average = static_cast<Average>(texts.average);
  options.blocking = static_cast<Blocking>(texts.blocking);
  options.registered = texts.localRegister != 0;
  options.hostStream = texts.stream || texts.streamNull == 0;
  if (texts.places >= 0) {
    options.places = texts.places == 0 ? Places::InPlaceOnly : Places::OutOfPlaceOnly;
  }
  if (!collective.inPlace) {
    if (options.places == Places::InPlaceOnly) {
      throw tools::UsageError("-O 0 asks for in place only, and this operation is not defined in place.");
    }
    options.places = Places::OutOfPlaceOnly;
  }
  if (texts.minBandwidth >= 0 || texts.ncclMinBandwidth >= 0) {
    options.minBusBandwidth = texts.minBandwidth >= 0 ? texts.minBandwidth : texts.ncclMinBandwidth;
  }
  if (!options.plotPath.empty()) {
    tools::checkPlotPath(options.plotPath);
  }
  options.ranks.threads = options.threads * options.gpus;
  addRemarks(app, collective, texts, options);
}

}  // namespace

std::optional<int> parseOptions(const Collective& collective, int argc, char** argv, Options& options) {
  options.arguments.assign(argv, argv + argc);
  Texts texts;
  CLI::App app(fmt::format("{}: time, bandwidth and correctness of a collective, as nccl-tests reports them",
                           collective.program),
               collective.program);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // as getopt does
  addRankFlags(app, options, texts);
  addSizeFlags(app, options, texts);
  addOperationFlags(app, options, texts);
  addMeasureFlags(app, options, texts);
  addReportFlags(app, options, texts);
  app.callback([&] { understand(app, collective, texts, options); });
  return tools::parseArguments(app, argc, argv);
}

std::vector<uint64_t> sizesToMeasure(const Options& options) {
  std::vector<uint64_t> sizes;
  uint64_t size = options.minBytes;
  while (size <= options.maxBytes) {
    sizes.push_back(size);
    const uint64_t next = options.stepFactor >= 2 ? size * options.stepFactor : size + options.stepBytes;
    if (next <= size || (options.stepFactor >= 2 && next / options.stepFactor != size)) {
      break;  // one size only, or past the largest number
    }
    size = next;
  }
  return sizes;
}

}  // namespace peal::bench

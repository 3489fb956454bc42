#include "bench/harness/table.h"

#include <fmt/format.h>

#include <map>

namespace peal::bench {
namespace {

std::string halfText(const std::optional<Measured>& half) {
  const Measured shown = half.value_or(Measured{});
  const std::string wrong = shown.wrong ? fmt::format("{:g}", static_cast<double>(*shown.wrong)) : "N/A";
  return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", fitNumber(shown.timeUs, 7), fitNumber(shown.algBw, 6),
                     fitNumber(shown.busBw, 6), wrong);
}

std::string caseText(const Row& row) {
  return fmt::format("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}", row.sizeBytes, row.count, typeInfo(row.type).name,
                     combineName(row.combine), row.root);
}

std::string optionsLine(const Options& options) {
  const bool factor = options.stepFactor >= 2;
  return fmt::format(
      "# nThread {} nGpus {} minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: {} "
      "validation: {} graph: 0 unalign: {}\n",
      options.threads, options.gpus, options.minBytes, options.maxBytes,
      factor ? options.stepFactor : options.stepBytes, factor ? "factor" : "bytes", options.warmups,
      options.iterations, options.aggregated, options.checks, options.unalign);
}

std::string blockingLine(Blocking blocking) {
  switch (blocking) {
    case Blocking::No:
      return "";
    case Blocking::EachCallAndBarrier:
      return "# Blocking Enabled: wait and barrier after each inner iteration (-m)\n";
    case Blocking::EachCall:
      return "# Blocking Enabled: wait after each inner iteration (-m), no barrier\n";
    case Blocking::EachIteration:
      return "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier\n";
  }
  return "";
}

std::string machineLines(const Preamble& preamble) {
  const RankInfo& first = preamble.ranks.front();
  std::map<std::string, int> ranksOn;
  bool crowded = false;
  for (const RankInfo& rank : preamble.ranks) {
    crowded = ++ranksOn[rank.host] > rank.allowedCpus || crowded;
  }
  std::string text = fmt::format("# machine: {}, {} CPUs allowed, load average {}\n", first.cpu,
                                 first.allowedCpus, preamble.loadAverage);
  text += fmt::format("# ranks: {}, on {} host{}\n", preamble.rankSource, ranksOn.size(),
                      ranksOn.size() == 1 ? "" : "s");
  if (crowded) {
    text += "# note: more ranks than CPUs: times include waiting for a turn.\n";
  }
  if (preamble.ranks.size() == 1) {
    text += "# note: 1 rank moves nothing. More: --ranks N (processes), -g N (threads), or a launcher.\n";
  }
  return text;
}

std::string deviceLines(const std::vector<RankInfo>& ranks) {
  std::string text = "# Using devices\n";
  std::map<std::string, int> onHost;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& info = ranks[rank];
    const bool onDevice = info.device != PEAL_DEVICE_HOST;
    const int index = onHost[info.host]++;
    text += fmt::format("#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [{}] {}\n", rank, 0, info.pid,
                        info.host, onDevice ? info.device : index, onDevice ? "GPU memory" : "host memory",
                        onDevice ? info.deviceName : info.cpu);
  }
  return text;
}

}  // namespace

std::string fitNumber(double value, int width) {
  for (int decimals = 2; decimals >= 0; --decimals) {
    std::string text = fmt::format("{:.{}f}", value, decimals);
    if (text.size() <= static_cast<size_t>(width)) {
      return text;
    }
  }
  return fmt::format("{:.{}e}", value, width >= 7 ? 1 : 0);
}

std::string preambleText(const Preamble& preamble) {
  const Options& options = preamble.options;
  std::string text = fmt::format("# peal {}.{}.{} headers={} library={}\n", PEAL_MAJOR, PEAL_MINOR,
                                 PEAL_PATCH, PEAL_VERSION_CODE, preamble.libraryVersion);
  text += fmt::format("# Collective test starting: {}\n", preamble.program);
  text += optionsLine(options);
  text += blockingLine(options.blocking);
  if (options.parallelInit) {
    text += "# Parallel Init Enabled: threads join the communicator by themselves\n";
  }
  text += machineLines(preamble);
  text += fmt::format("# buffers: {}; calls: {}{}\n",
                      options.registered ? "peers read them in place (-R 1)" : "plain memory (-R 0)",
                      options.graphLaunches > 0
                          ? fmt::format("in a CUDA graph, launched {} times (-G)", options.graphLaunches)
                      : options.device != PEAL_DEVICE_HOST ? "on a CUDA stream"
                      : options.hostStream                 ? "on a host stream"
                                                           : "on the calling thread",
                      options.deterministic ? "; sums in rank order" : "");
  for (const std::string& remark : options.remarks) {
    text += fmt::format("# note: {}\n", remark);
  }
  return text + "#\n" + deviceLines(preamble.ranks);
}

std::string headerText(const Options& options) {
  const char* time = options.reportCpuTime ? "cputime" : "time";
  const std::string stampTitle = options.reportTimestamps ? fmt::format("{:>20}", "timestamp") : "";
  const std::string stampUnit = options.reportTimestamps ? fmt::format("{:>20}", "%Y-%m-%d %H:%M:%S") : "";
  const auto line = [](const char* size, const char* count, const char* type, const char* redop,
                       const char* root) {
    return fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", size, count, type, redop, root);
  };
  const auto half = [](const char* first, const char* second, const char* third, const char* fourth) {
    return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", first, second, third, fourth);
  };
  return "#\n" + line("", "", "", "", "") +
         "           out-of-place                       in-place          \n" +
         line("size", "count", "type", "redop", "root") + half(time, "algbw", "busbw", "#wrong") +
         half(time, "algbw", "busbw", "#wrong") + stampTitle + "\n" + line("(B)", "(elements)", "", "", "") +
         half("(us)", "(GB/s)", "(GB/s)", "") + half("(us)", "(GB/s)", "(GB/s)", "") + stampUnit + "\n";
}

std::string rowText(const Row& row) {
  std::string text = caseText(row) + halfText(row.outOfPlace) + halfText(row.inPlace);
  if (!row.timestamp.empty()) {
    text += fmt::format("{:>21}", row.timestamp);
  }
  return text + "\n";
}

std::string boundText(const std::vector<Row>& rows) {
  std::string text =
      "#\n# bound: bytes on the wire of one call: the least that any algorithm needs and what was sent\n";
  text += fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>14}  {:>14}  {:>14}  {:>7}  {:>8}\n", "size",
                      "count", "type", "redop", "root", "bound/rank", "sent/rank", "busiest rank", "ratio",
                      "messages");
  for (const Row& row : rows) {
    const Wire& wire = row.wire;
    const std::string ratio =
        wire.boundBytes > 0 ? fmt::format("{:.3f}", wire.meanSentBytes / wire.boundBytes) : "N/A";
    // The leading # takes the place of one blank: the columns stay under those of the table.
    text += fmt::format("#{}  {:>14.0f}  {:>14.0f}  {:>14.0f}  {:>7}  {:>8.1f}\n", caseText(row).substr(1),
                        wire.boundBytes, wire.meanSentBytes, wire.mostSentBytes, ratio, wire.meanMessages);
  }
  return text + "#\n";
}

std::string footerText(const Options& options, const char* program, const Summary& summary) {
  const char* verdict = "";
  if (options.minBusBandwidth) {
    verdict = summary.bandwidthFailed ? "FAILED" : "OK";
  }
  return fmt::format("# {:<20} : {} {}\n", "Out of bounds values", summary.outOfBounds,
                     summary.outOfBounds == 0 ? "OK" : "FAILED") +
         fmt::format("# {:<20} : {:g} {}\n#\n", "Avg bus bandwidth", summary.meanBusBw, verdict) +
         fmt::format("# Collective test concluded: {}\n", program);
}

std::string memoryText(const std::vector<MemoryInfo>& ranks) {
  std::string text = fmt::format("# {:<6} {:>16} {:>16} {:>16} {:>16}\n", "memory", "Initialization",
                                 "User-Allocated", "Collective", "peak (MiB)");
  const auto mib = [](uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const MemoryInfo& memory = ranks[rank];
    text += fmt::format("# rank {:<2} {:>15.2f} {:>16.2f} {:>16.2f} {:>16.2f}\n", rank, mib(memory.initBytes),
                        mib(memory.bufferBytes), mib(memory.collectiveBytes), mib(memory.peakBytes));
  }
  return text;
}

}  // namespace peal::bench

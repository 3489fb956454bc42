#include "bench/harness/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "bench/harness/chart.h"
#include "bench/harness/gpu.h"
#include "bench/harness/machine.h"
#include "tools/common/error.h"
#include "tools/common/plot.h"
#include "tools/common/sizes.h"

namespace peal::bench {
namespace {

int libraryVersion() {
  int version = 0;
  tools::check(pealGetVersion(&version), "pealGetVersion");
  return version;
}

template <size_t Size>
void copyText(char (&to)[Size], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), Size - 1));
}

double pick(Average average, const std::vector<RankReport>& reports) {
  double sum = 0, least = reports[0].secondsPerCall, most = least;
  for (const RankReport& report : reports) {
    sum += report.secondsPerCall;
    least = std::min(least, report.secondsPerCall);
    most = std::max(most, report.secondsPerCall);
  }
  switch (average) {
    case Average::Rank0:
      return reports[0].secondsPerCall;
    case Average::Min:
      return least;
    case Average::Max:
      return most;
    case Average::Mean:
      break;
  }
  return sum / static_cast<double>(reports.size());
}

Wire wireOf(double boundBytes, const std::vector<RankReport>& reports) {
  Wire wire{boundBytes, 0, 0, 0};
  const auto ranks = static_cast<double>(reports.size());
  for (const RankReport& report : reports) {
    wire.meanSentBytes += report.sentBytesPerCall / ranks;
    wire.meanMessages += report.messagesPerCall / ranks;
    wire.mostSentBytes = std::max(wire.mostSentBytes, report.sentBytesPerCall);
  }
  return wire;
}

}  // namespace

Session::Session(const Options& options, const Collective& collective, const tools::RankContext& ranks)
    : options_(options),
      collective_(collective),
      ranks_(ranks),
      startTime_(timestamp()),
      exchange_(ranks),
      preamble_{options, collective.program, libraryVersion(), rankSourceText(), loadAverage(), introduce()} {
}

void Session::print(const std::string& text) const {
  if (isReporter()) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);  // a row is seen when it is measured, and before a crash
  }
}

std::vector<RankInfo> Session::introduce() {
  RankInfo own;
  own.pid = getpid();
  own.allowedCpus = allowedCpus();
  own.availableBytes = availableMemoryBytes();
  copyText(own.host, hostName());
  copyText(own.cpu, cpuModel());
  own.device = ranks_.device;
  if (ranks_.device != PEAL_DEVICE_HOST) {
    copyText(own.deviceName, deviceName(ranks_.device));
    own.deviceFreeBytes = freeDeviceBytes(ranks_.device);
  }
  return exchange_.gather(own);
}

// Every rank comes to the same verdict, because all look at the same records. On a GPU there is a mirror in
// host memory too.
void Session::requireMemory(const std::vector<RankInfo>& infos) const {
  const uint64_t need = 2 * largestBufferBytes(options_, collective_, ranks_.size);
  const auto refuse = [&](uint64_t ranks, uint64_t available, const std::string& where) {
    throw tools::UsageError(fmt::format(
        "{} ranks with buffers of {} bytes each do not fit into the {} bytes that {} has available. "
        "Ask for a smaller --maxbytes or fewer ranks.",
        ranks, need, available, where));
  };
  std::map<std::string, uint64_t> ranksOn;
  std::map<std::pair<std::string, int>, uint64_t> ranksOnDevice;
  for (const RankInfo& info : infos) {
    ++ranksOn[info.host];
    ++ranksOnDevice[{info.host, info.device}];
  }
  for (const RankInfo& info : infos) {
    const uint64_t ranks = ranksOn[info.host];
    if (need > info.availableBytes / ranks) {
      refuse(ranks, info.availableBytes, info.host);
    }
    const uint64_t sharing = ranksOnDevice[{info.host, info.device}];
    if (info.device != PEAL_DEVICE_HOST && need > info.deviceFreeBytes / sharing) {
      refuse(sharing, info.deviceFreeBytes, fmt::format("device {} of {}", info.device, info.host));
    }
  }
}

std::string Session::rankSourceText() const {
  switch (ranks_.source) {
    case tools::RankSource::Processes:
      return fmt::format("{} processes (--ranks)", ranks_.size);
    case tools::RankSource::Threads:
      return fmt::format("{} threads of one process (-t, -g)", ranks_.size);
    case tools::RankSource::Launcher:
      return fmt::format("{} processes (launcher: {})", ranks_.size, ranks_.launcher);
    case tools::RankSource::Alone:
      break;
  }
  return "1";
}

std::vector<int> Session::roots() const {
  if (!collective_.rooted) {
    return {-1};
  }
  if (options_.root >= ranks_.size) {
    throw tools::UsageError(fmt::format("root {} is no rank: there are {} ranks, 0 to {}.", options_.root,
                                        ranks_.size, ranks_.size - 1));
  }
  if (options_.root >= 0) {
    return {options_.root};
  }
  std::vector<int> all;
  for (int root = 0; root < ranks_.size; ++root) {
    all.push_back(root);
  }
  return all;
}

Measured Session::combineReports(const Row& row, const std::vector<RankReport>& reports) const {
  Measured half;
  const double seconds = pick(options_.average, reports);
  half.timeUs = seconds * 1e6;
  half.algBw = seconds > 0 ? static_cast<double>(row.sizeBytes) / 1e9 / seconds : 0;
  half.busBw = half.algBw * collective_.busFactor(ranks_.size);
  uint64_t wrong = 0;
  for (const RankReport& report : reports) {
    wrong += report.wrongElements;
    half.strayBytes += report.strayBytes;
  }
  if (options_.checks > 0) {
    half.wrong = wrong;
  }
  return half;
}

void Session::runRow(Measurer::Case what) {
  const Extents extents = measurer_->extents(what);
  Row row;
  row.sizeBytes = std::max(extents.send, extents.receive) * typeInfo(what.type).bytes;
  row.count = extents.parameter;
  row.type = what.type;
  row.combine = what.combine;
  row.root = collective_.rooted ? what.root : -1;
  const double boundBytes = static_cast<double>(row.sizeBytes) * collective_.boundFactor(ranks_.size);

  const auto measure = [&](Place place) {
    const RankReport own = measurer_->measure(what, place);
    const std::vector<RankReport> reports = exchange_.gather(own);
    const Measured half = combineReports(row, reports);
    ownFaults_ += own.wrongElements + own.strayBytes;
    outOfBounds_ += half.wrong.value_or(0) + half.strayBytes;
    busBwSum_ += half.busBw;
    ++busBwCount_;
    row.wire = wireOf(boundBytes, reports);
    return half;
  };
  if (options_.places != Places::InPlaceOnly) {
    row.outOfPlace = measure(Place::Out);
  }
  if (options_.places != Places::OutOfPlaceOnly) {
    row.inPlace = measure(Place::In);
  }
  if (options_.reportTimestamps) {
    row.timestamp = timestamp();
  }
  print(rowText(row));
  rows_.push_back(row);
}

void Session::runCycles(const Measurer::Case& what) {
  Measurer::Case sized = what;
  for (uint64_t size = options_.minBytes; options_.warmups > 0; size *= 2) {
    sized.sizeBytes = size;
    measurer_->warmUp(sized);
    if (size == 0 || size > options_.maxBytes / 2) {
      break;
    }
  }
  const std::vector<uint64_t> sizes = sizesToMeasure(options_);
  const size_t kept = rows_.size();
  for (int cycle = 0; options_.cycles == 0 || cycle < options_.cycles; ++cycle) {
    if (options_.cycles == 0) {
      rows_.resize(kept);  // endless: keep one cycle's rows, not all
    }
    for (const uint64_t size : sizes) {
      sized.sizeBytes = size;
      runRow(sized);
    }
  }
}

void Session::measureAll() {
  const std::vector<int> allRoots = roots();
  for (const pealDataType_t type : options_.types) {
    for (const Combine combine : options_.combines) {
      for (const int root : allRoots) {
        runCycles({combine, type, root, 0});
      }
    }
  }
}

void Session::gatherMemory() {
  const ProcessMemory now = processMemory();
  memory_.collectiveBytes =
      now.residentBytes - std::min(now.residentBytes, memory_.initBytes + memory_.bufferBytes);
  memory_.peakBytes = now.peakBytes;
  allMemory_ = exchange_.gather(memory_);
}

Summary Session::summarize() const {
  Summary summary;
  summary.outOfBounds = outOfBounds_;
  summary.meanBusBw = busBwCount_ > 0 ? busBwSum_ / static_cast<double>(busBwCount_) : 0;
  summary.bandwidthFailed = options_.minBusBandwidth && summary.meanBusBw < 0.9 * *options_.minBusBandwidth;
  return summary;
}

void Session::writeReports(const std::optional<Summary>& summary,
                           const std::vector<std::string>& errors) const {
  if (!isReporter()) {
    return;
  }
  if (!options_.jsonPath.empty()) {
    const Report report{preamble_, startTime_, timestamp(), rows_, summary, allMemory_, errors};
    writeFile(options_.jsonPath, reportJson(report).dump(2) + "\n");
    print(fmt::format("# Wrote {}\n", options_.jsonPath));
  }
  if (summary && !options_.plotPath.empty()) {
    const RankInfo& first = preamble_.ranks.front();
    tools::plot(
        bandwidthChart(
            fmt::format("{}, {}", collective_.program, preamble_.rankSource),
            fmt::format("{}, {} CPUs, load {}", first.cpu, first.allowedCpus, preamble_.loadAverage), rows_),
        options_.plotPath);
    print(fmt::format("# Wrote {}\n", options_.plotPath));
  }
}

int Session::run() {
  try {
    requireMemory(preamble_.ranks);
    print(preambleText(preamble_));
    memory_.initBytes = processMemory().residentBytes;
    measurer_ = std::make_unique<Measurer>(options_, collective_, ranks_);
    memory_.bufferBytes = measurer_->bufferBytes();
    print(headerText(options_));
    measureAll();
    if (options_.reportMemory) {
      gatherMemory();
    }
  } catch (const std::exception& error) {
    writeReports(std::nullopt, {error.what()});
    throw;
  }
  const Summary summary = summarize();
  print(boundText(rows_));
  print(footerText(options_, collective_.program, summary));
  if (options_.reportMemory) {
    print(memoryText(allMemory_));
  }
  writeReports(summary, {});
  const bool failed = ownFaults_ != 0 || summary.outOfBounds != 0 || summary.bandwidthFailed;
  return failed ? tools::kExitFailure : 0;
}

}  // namespace peal::bench

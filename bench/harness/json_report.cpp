#include "bench/harness/json_report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "tools/common/error.h"

namespace peal::bench {
namespace {

using OrderedJson = nlohmann::ordered_json;

// nccl-tests writes truth values as text.
const char* truth(bool value) { return value ? "true" : "false"; }

OrderedJson configJson(const Preamble& preamble) {
  const Options& options = preamble.options;
  OrderedJson config{{"nthreads", options.threads},
                     {"ngpus", options.gpus},
                     {"minimum_bytes", options.minBytes},
                     {"maximum_bytes", options.maxBytes}};
  if (options.stepFactor >= 2) {
    config["step_factor"] = options.stepFactor;
  } else {
    config["step_bytes"] = options.stepBytes;
  }
  config["warmup_iters"] = options.warmups;
  config["iterations"] = options.iterations;
  config["aggregated_iterations"] = options.aggregated;
  config["validation"] = options.checks;
  config["graph"] = 0;
  config["blocking_collectives"] = truth(options.blocking != Blocking::No);
  config["parallel_init"] = truth(options.parallelInit);
  config["devices"] = OrderedJson::array();
  for (size_t rank = 0; rank < preamble.ranks.size(); ++rank) {
    const RankInfo& info = preamble.ranks[rank];
    config["devices"].push_back({{"rank", rank},
                                 {"group", 0},
                                 {"pid", info.pid},
                                 {"hostname", info.host},
                                 {"device", PEAL_DEVICE_HOST},
                                 {"device_hex", "host memory"},
                                 {"device_info", info.cpu}});
  }
  return config;
}

OrderedJson halfJson(const Options& options, const std::optional<Measured>& half) {
  if (!half) {
    return nullptr;
  }
  OrderedJson json{{options.reportCpuTime ? "cpu_time" : "time", half->timeUs},
                   {"alg_bw", half->algBw},
                   {"bus_bw", half->busBw},
                   {"nwrong", nullptr}};
  if (half->wrong) {
    json["nwrong"] = *half->wrong;
  }
  return json;
}

OrderedJson rowJson(const Options& options, const Row& row) {
  OrderedJson json{{"size", row.sizeBytes},
                   {"count", row.count},
                   {"type", typeInfo(row.type).name},
                   {"redop", combineName(row.combine)},
                   {"root", std::to_string(row.root)},
                   {"out_of_place", halfJson(options, row.outOfPlace)},
                   {"in_place", halfJson(options, row.inPlace)},
                   {"actual_iterations", options.iterations},
                   {"experiment_name", ""}};
  json["peal"] = {{"bound_bytes_per_rank", row.wire.boundBytes},
                  {"sent_bytes_per_rank", row.wire.meanSentBytes},
                  {"sent_bytes_busiest_rank", row.wire.mostSentBytes},
                  {"messages_per_rank", row.wire.meanMessages}};
  return json;
}

OrderedJson pealJson(const Report& report) {
  const Preamble& preamble = report.preamble;
  const RankInfo& first = preamble.ranks.front();
  OrderedJson json{
      {"library_version", preamble.libraryVersion},
      {"ranks", preamble.ranks.size()},
      {"rank_source", preamble.rankSource},
      {"machine",
       {{"cpu", first.cpu}, {"allowed_cpus", first.allowedCpus}, {"load_average", preamble.loadAverage}}},
      {"registered", preamble.options.registered},
      {"host_stream", preamble.options.hostStream},
      {"device", first.device == PEAL_DEVICE_HOST ? "host memory" : first.deviceName},
      {"graph_launches", preamble.options.graphLaunches},
      {"deterministic", preamble.options.deterministic},
      {"notes", preamble.options.remarks}};
  for (const MemoryInfo& memory : report.memory) {
    json["memory"].push_back({{"initialization_bytes", memory.initBytes},
                              {"buffer_bytes", memory.bufferBytes},
                              {"collective_bytes", memory.collectiveBytes},
                              {"peak_bytes", memory.peakBytes}});
  }
  return json;
}

}  // namespace

OrderedJson reportJson(const Report& report) {
  const Options& options = report.preamble.options;
  // No "env": the environment can hold a password.
  OrderedJson json{{"version", 2},
                   {"start_time", report.startTime},
                   {"args", options.arguments},
                   {"config", configJson(report.preamble)},
                   {"results", OrderedJson::array()}};
  for (const Row& row : report.rows) {
    json["results"].push_back(rowJson(options, row));
  }
  if (report.summary) {
    const Summary& summary = *report.summary;
    json["out_of_bounds"] = {{"count", summary.outOfBounds}, {"okay", truth(summary.outOfBounds == 0)}};
    json["average_bus_bandwidth"] = {
        {"bandwidth", summary.meanBusBw},
        {"okay", options.minBusBandwidth ? truth(!summary.bandwidthFailed) : "unchecked"}};
  }
  json["errors"] = report.errors;
  json["end_time"] = report.endTime;
  json["peal"] = pealJson(report);
  return json;
}

void writeFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) {
    throw tools::ToolError(fmt::format("cannot write {}: {}", path, strerror(errno)));
  }
}

void probeFile(const std::string& path) {
  if (!std::ofstream(path, std::ios::app)) {
    throw tools::UsageError(fmt::format("cannot write {}: {}", path, strerror(errno)));
  }
}

}  // namespace peal::bench

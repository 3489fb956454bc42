// peal-info: what pealSystemInfo, pealTopology and pealExplainChoice say, as tables and trees for people or
// as it is.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "peal/peal.h"
#include "tools/common/arguments.h"
#include "tools/common/error.h"
#include "tools/common/sizes.h"
#include "tools/info/topology_model.h"

namespace {

using nlohmann::json;
using peal::tools::check;

// Rows in columns as wide as their longest cell; the last column is not padded.
void printTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      fmt::print("  {:{}}", row[i], i + 1 < row.size() ? widths[i] : 0);
    }
    fmt::print("\n");
  }
}

void printParts(const char* title, const json& parts) {
  fmt::print("\n{}\n", title);
  std::vector<std::vector<std::string>> rows;
  for (const json& part : parts) {
    rows.push_back({part.at("name"), part.at("found").get<bool>() ? "yes" : "no", part.at("why")});
  }
  printTable(rows);
}

std::string valueText(const json& knob) {
  if (knob.at("origin").is_null()) {
    return "unknown";
  }
  if (knob.at("secret").get<bool>()) {
    return knob.at("origin") == "default" ? "not set" : "(hidden)";
  }
  const std::string value = knob.at("value");
  return value.empty() ? "(empty)" : value;
}

std::string originText(const json& knob) {
  return knob.at("origin").is_null() ? "unknown" : knob.at("origin").get<std::string>();
}

void printValues(const json& knobs) {
  fmt::print("\nconfiguration (by environment variables; peal-info --config explains them)\n");
  std::vector<std::vector<std::string>> rows;
  for (const json& knob : knobs) {
    rows.push_back({knob.at("name"), valueText(knob), originText(knob)});
  }
  printTable(rows);
}

void printExplained(const json& knobs) {
  for (const json& knob : knobs) {
    const std::string range = knob.at("range");
    const std::string fallback = knob.at("default");
    fmt::print("{} = {}\n    from {}; default {}{}\n    {}\n", knob.at("name").get<std::string>(),
               valueText(knob), originText(knob), fallback.empty() ? "(empty)" : fallback,
               range.empty() ? "" : "; legal " + range, knob.at("help").get<std::string>());
  }
}

// What is wrong with the environment, on the error output. 0, or the exit code for a configuration in error.
int tellFaults(const json& configuration) {
  for (const std::string sentence : configuration.at("unknown")) {
    fmt::print(stderr, "peal-info: {}\n", sentence);
  }
  if (configuration.at("error").is_null()) {
    return 0;
  }
  fmt::print(stderr, "peal-info: the configuration is in error, so no communicator can be made: {}\n",
             configuration.at("error").get<std::string>());
  return peal::tools::kExitUsage;
}

void writeFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    throw peal::tools::ToolError(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  }
}

// The topology: described by `file` if that is given, as text, JSON or drawn to `svg`.
int showTopology(const std::string& file, bool asJson, const std::string& svg) {
  if (!svg.empty() && !svg.ends_with(".svg")) {
    throw peal::tools::UsageError(
        fmt::format("--svg \"{}\": the topology is drawn as SVG, so the name must end in .svg.", svg));
  }
  const char* text = nullptr;
  const pealResult_t result = pealTopology(file.empty() ? nullptr : file.c_str(), &text);
  if (result == pealInvalidArgument) {  // the file, or the configuration
    throw peal::tools::UsageError(pealGetLastError(nullptr));
  }
  check(result, "pealTopology");
  const std::vector<peal::tools::Box> nodes = peal::tools::topologyBoxes(json::parse(text));
  if (!svg.empty()) {
    writeFile(svg, peal::tools::topologySvg(nodes));
  }
  if (asJson) {
    fmt::print("{}\n", text);
  } else if (svg.empty()) {
    fmt::print("{}", peal::tools::topologyText(nodes));
  }
  return 0;
}

// A call whose choice is to be explained.
struct Explain {
  std::vector<std::string> call;  // collective and size
  int nodes = 1;
  int ranksPerNode = 2;
  std::string gpuPath;  // empty: on host memory
};

void printLink(const char* name, const json& cost) {
  const double usPerByte = cost.at("usPerByte");
  fmt::print("  {:8} {:.2f} us latency, {:.2f} us for each message more, {}\n", name,
             cost.at("latencyUs").get<double>(), cost.at("gapUs").get<double>(),
             usPerByte > 0 ? fmt::format("{:.3f} GB/s", 1e-3 / usPerByte) : std::string("bytes are free"));
}

void printLinks(const json& answer, int nodes) {
  const json& links = answer.at("links");
  const bool onGpu = answer.contains("gpus");
  if (!onGpu || nodes > 1) {
    fmt::print("\nlinks ({})\n", links.at("measured").get<bool>()    ? "measured"
                                 : links.at("described").get<bool>() ? "described, not measured"
                                                                     : "assumed, not measured");
    if (!onGpu) {
      printLink("inside", links.at("inside"));
    }
    printLink("between", links.at("between"));
  }
  if (onGpu) {
    const json& gpus = answer.at("gpus");
    const json& cost = gpus.at("cost");
    fmt::print("\nGPUs of a node, path {} ({})\n", gpus.at("path").get<std::string>(),
               gpus.at("fromFile").get<bool>() ? "PEAL_TUNER_FILE" : "assumed, not measured");
    const auto us = [&](const char* name) { return cost.at(name).get<double>(); };
    fmt::print(
        "  a step {:.2f} us by ll, {:.2f} by ll128, {:.2f} by simple; a launch {:.2f} us, a channel more "
        "{:.2f}\n",
        us("llUs"), us("ll128Us"), us("simpleUs"), us("launchUs"), us("blockUs"));
    fmt::print("  {:.1f} GB/s on a link, {:.1f} by a channel\n", 1e-3 / us("linkUsPerByte"),
               1e-3 / us("blockUsPerByte"));
  }
}

void printCandidates(const json& candidates, bool onGpu) {
  std::vector<std::vector<std::string>> rows{{"algorithm", "predicted us", "chunk bytes", "function"}};
  if (onGpu) {
    rows.front().insert(rows.front().begin() + 1, {"protocol", "channels"});
  }
  for (const json& candidate : candidates) {
    std::vector<std::string> row{
        candidate.at("algorithm"), fmt::format("{:.1f}", candidate.at("predictedUs").get<double>()),
        std::to_string(candidate.at("chunkBytes").get<size_t>()), candidate.at("function")};
    if (onGpu) {
      row.insert(row.begin() + 1, {candidate.at("protocol").get<std::string>(),
                                   std::to_string(candidate.at("channels").get<int>())});
    }
    rows.push_back(row);
  }
  printTable(rows);
}

int explain(const Explain& asked, bool asJson) {
  const char* text = nullptr;
  const size_t bytes = peal::tools::parseSizeBytes(asked.call[1], "--explain's size");
  const char* const collective = asked.call[0].c_str();
  const bool onGpu = !asked.gpuPath.empty();
  const pealResult_t result =
      onGpu ? pealExplainGpuChoice(collective, bytes, asked.nodes, asked.ranksPerNode, asked.gpuPath.c_str(),
                                   &text)
            : pealExplainChoice(collective, bytes, asked.nodes, asked.ranksPerNode, &text);
  if (result == pealInvalidArgument) {
    throw peal::tools::UsageError(pealGetLastError(nullptr));
  }
  check(result, onGpu ? "pealExplainGpuChoice" : "pealExplainChoice");
  if (asJson) {
    fmt::print("{}", text);
    return 0;
  }
  const json answer = json::parse(text);
  fmt::print("{} of {} bytes on {} node{} of {} rank{}{}\n", asked.call[0], bytes, asked.nodes,
             asked.nodes == 1 ? "" : "s", asked.ranksPerNode, asked.ranksPerNode == 1 ? "" : "s",
             onGpu ? " on GPUs" : "");
  printLinks(answer, asked.nodes);
  fmt::print("\ncandidates{}\n", onGpu ? ", each with its best number of channels" : "");
  printCandidates(answer.at("candidates"), onGpu);
  fmt::print("\nchosen: {}: {}.\n", answer.at("chosen").get<std::string>(),
             answer.at("reason").get<std::string>());
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app("Shows what this peal library is, what it found on this machine, and its configuration.",
               "peal-info");
  bool configOnly = false;
  bool asJson = false;
  app.add_flag("--config", configOnly, "Only the configuration table, every knob explained");
  app.add_flag("--json", asJson, "JSON instead of tables (with --config: the configuration's part)");
  bool topology = false;
  std::string svg, described;
  app.add_flag(
      "--topology", topology,
      "Processors, memory, devices, networks and rails as a tree (with --json: as PEAL_TOPOLOGY_FILE "
      "reads it)");
  app.add_option("--svg", svg, "Draw the topology to this file");
  app.add_option("--from", described, "Show the topology that this file describes instead of this machine's");
  Explain asked;
  CLI::Option* explains =
      app.add_option("--explain", asked.call,
                     "COLLECTIVE SIZE: which algorithms could run all_reduce, reduce_scatter, all_gather, "
                     "broadcast or reduce over an array of that size (4M), how long each is predicted to "
                     "take, and which is chosen")
          ->expected(2);
  app.add_option("--nodes", asked.nodes, "With --explain: nodes")
      ->needs(explains)
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--ranks-per-node", asked.ranksPerNode, "With --explain: ranks of a node")
      ->needs(explains)
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--gpu-path", asked.gpuPath,
                 "With --explain: the ranks are on GPUs that reach each other so inside a node: same_device, "
                 "nvlink, pcie or host_memory")
      ->needs(explains);
  if (const auto code = peal::tools::parseArguments(app, argc, argv)) {
    return *code;
  }
  if (topology || !svg.empty() || !described.empty()) {
    if (configOnly) {
      throw peal::tools::UsageError("--config and the topology are two reports: ask for one");
    }
    return showTopology(described, asJson, svg);
  }
  if (!asked.call.empty()) {
    return explain(asked, asJson);
  }
  const char* text = nullptr;
  check(pealSystemInfo(&text), "pealSystemInfo");
  const json info = json::parse(text);
  const json& configuration = info.at("configuration");
  if (asJson) {
    fmt::print("{}\n", (configOnly ? configuration : info).dump(2));
  } else if (configOnly) {
    printExplained(configuration.at("knobs"));
  } else {
    fmt::print("peal {}\n  processor: {} loops, {} processors allowed\n",
               info.at("version").get<std::string>(), info.at("cpu").at("isa").get<std::string>(),
               info.at("cpu").at("allowedCpus").get<int>());
    printParts("devices", info.at("devices"));
    printParts("transports", info.at("transports"));
    printParts("discovery (peal-info --topology shows what it finds)", info.at("discovery"));
    printValues(configuration.at("knobs"));
  }
  return tellFaults(configuration);
}

}  // namespace

int main(int argc, char** argv) {
  return peal::tools::guard("peal-info", [&] { return run(argc, argv); });
}

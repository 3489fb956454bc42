// peal-plan: what a training step of ZeRO costs in memory, bytes and time, and which stage to choose. All
// numbers are pealZeroPlan's; this program reads the command line and prints.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "peal/zero.hpp"
#include "tools/common/arguments.h"
#include "tools/common/error.h"
#include "tools/plan/output.h"
#include "tools/plan/quantity.h"

namespace peal::tools {
namespace {

enum class Quantity { Count, Amount, Rate, Time };

constexpr double kMostCounted = 1e18;  // fits 64 bits, and so do sums of a few
constexpr double kLeastMemory = 1e6;   // of a device: less is a unit that was forgotten

double parse(Quantity kind, const std::string& text, const std::string& name) {
  switch (kind) {
    case Quantity::Count:
      return parseCount(text, name);
    case Quantity::Amount:
      return parseAmount(text, name);
    case Quantity::Rate:
      return parseRate(text, name);
    case Quantity::Time:
      return parseTime(text, name);
  }
  return 0;
}

// An option whose text is a quantity.
template <class T>
CLI::Option* addQuantity(CLI::App& app, const std::string& name, T& value, Quantity kind,
                         const std::string& help) {
  return app.add_option_function<std::string>(
      name,
      [&value, kind, name](const std::string& text) {
        const double parsed = parse(kind, text, name);
        if (std::is_integral_v<T> && parsed > kMostCounted) {
          throw UsageError(
              fmt::format("{}: {} is more than {:g}, the most that is counted", name, text, kMostCounted));
        }
        value = static_cast<T>(parsed);
      },
      help);
}

void addModel(CLI::App& app, pealZeroPlanInput_t& input) {
  addQuantity(app, "-p,--parameters", input.parameters, Quantity::Count, "trained parameters, such as 7B")
      ->required();
  addQuantity(app, "--frozen", input.frozenParameters, Quantity::Count, "frozen parameters: weights only");
  app.add_option("--weight-bytes", input.weightBytes, "bytes per weight")->capture_default_str();
  app.add_option("--gradient-bytes", input.gradientBytes, "bytes per gradient")->capture_default_str();
  app.add_option("--optimizer-bytes", input.optimizerBytes, "K: bytes of optimizer state per parameter")
      ->capture_default_str();
  app.add_option("--reduce-bytes", input.reduceBytes,
                 "bytes per gradient while it is sent; 0: those of the gradient")
      ->capture_default_str();
  app.add_option("--replica-sum-bytes", input.replicaSumBytes,
                 "HSDP: bytes per element of sums on their way between groups. 4: peal's engine; 0: those of "
                 "--reduce-bytes, as in the published formula")
      ->capture_default_str();
  app.add_option(
      "--units", input.units,
      "stage 3: units that are gathered one by one, such as layers; without it as many as --layers");
  addQuantity(app, "--unit-elements", input.unitElements, Quantity::Count, "parameters of the largest unit");
  addQuantity(app, "--bucket-bytes", input.bucketBytes, Quantity::Amount,
              "size of a gradient bucket (25MiB)");
  auto* given = addQuantity(app, "--activations", input.activationBytes, Quantity::Amount,
                            "bytes of activations on a rank");
  for (const auto& [name, value, help] :
       {std::tuple{"--layers", &input.layers,
                   "layers, for activations: 34 * sequence * sequences * hidden each"},
        std::tuple{"--hidden", &input.hidden, "width of the model"},
        std::tuple{"--sequence", &input.sequence, "tokens of a sequence"},
        std::tuple{"--sequences", &input.sequences, "sequences of a micro-batch on a rank (1)"}}) {
    app.add_option(name, *value, help)->excludes(given);
  }
}

void addMachine(CLI::App& app, pealZeroPlanInput_t& input) {
  app.add_option("-n,--ranks", input.ranks, "ranks in all; default with --topology: all that it holds");
  app.add_option("--rank", input.rank, "the rank whose memory is shown")->capture_default_str();
  app.add_option("-g,--group", input.group, "HSDP: ranks in a shard group; 0: none")->capture_default_str();
  app.add_option("-m,--micro-batches", input.microBatches, "micro-batches of a step")->capture_default_str();
  addQuantity(app, "-t,--tokens", input.tokens, Quantity::Count, "tokens of a micro-batch on a rank");
  addQuantity(app, "--flops", input.flopsPerSecond, Quantity::Amount,
              "FLOP/s that a rank reaches, such as 400T");
  addQuantity(app, "--bandwidth", input.networkBytesPerSecond, Quantity::Rate,
              "bytes/s that a rank sends over the network, such as 50GB, or 400Gbit");
  addQuantity(app, "--group-bandwidth", input.groupBytesPerSecond, Quantity::Rate,
              "bytes/s inside a shard group, such as 450GB; default: the network's");
  addQuantity(app, "--latency", input.latencySeconds, Quantity::Time, "time per message, such as 5us");
  addQuantity(app, "--memory", input.deviceBytes, Quantity::Amount, "memory of a rank, such as 80GB");
}

// The columns that --stage asks for.
std::vector<int> chosenStages(const std::string& text, const pealZeroPlanInput_t& input) {
  if (text != "all") {
    for (int stage = 0; stage < pealZeroPlanStages; ++stage) {
      if (text == stageName(stage)) {
        if (stage >= pealZeroPlanHsdp && input.group == 0) {
          throw UsageError(
              fmt::format("--stage {} needs --group: how many ranks share one copy of the model", text));
        }
        return {stage};
      }
    }
    throw UsageError(fmt::format("--stage {} is none of all, 0, 1, 2, 3, hsdp, hsdp1 and hsdp2", text));
  }
  std::vector<int> stages{0, 1, 2, 3};
  if (input.group > 0) {
    stages.insert(stages.end(), {pealZeroPlanHsdp1, pealZeroPlanHsdp2, pealZeroPlanHsdp});
  }
  return stages;
}

// The machines of --topology; ranks that were not given become all of theirs.
std::optional<Cluster> readCluster(const CLI::App& app, const std::string& file, pealZeroPlanInput_t& input) {
  const bool ranksGiven = app.count("--ranks") > 0;
  if (app.count("--topology") == 0) {
    if (!ranksGiven) {
      throw UsageError("--ranks is required, or --topology with a file that describes the machines");
    }
    return std::nullopt;
  }
  const char* json = nullptr;
  const pealResult_t result = pealTopology(file.empty() ? nullptr : file.c_str(), &json);
  if (result == pealInvalidArgument) {
    throw UsageError(pealGetLastError(nullptr));
  }
  check(result, "pealTopology");
  const Cluster cluster = clusterOf(nlohmann::json::parse(json));
  if (!ranksGiven) {
    input.ranks = cluster.nodes * cluster.ranksPerNode;
  }
  return input.ranks > 0 ? partOf(cluster, input.ranks, input.group) : cluster;
}

int runPlan(int argc, char** argv) {
  CLI::App app{
      "Memory, communication and time of a ZeRO training step, and which stage to choose.\n"
      "Formulas: docs/ZERO-ENGINE.md. Example: peal-plan -p 13B -n 32 -g 8 --memory 80GB --bandwidth 50GB "
      "--group-bandwidth 450GB --flops 400T -t 4096 --units 40",
      "peal-plan"};
  pealZeroPlanInput_t input = zero::defaultPlanInput();
  input.sequences = 1;
  input.replicaSumBytes = 4;
  std::string stage = "all";
  bool json = false, noReshard = false, reduceEach = false;
  addModel(app, input);
  addMachine(app, input);
  std::string topologyFile;
  app.add_option("--topology", topologyFile,
                 "a described topology (docs/TOPOLOGY.md): also show bytes and time by link class; without a "
                 "file: PEAL_TOPOLOGY_FILE, else this machine")
      ->expected(0, 1);
  app.add_option("-s,--stage", stage,
                 "all, 0, 1, 2, 3, hsdp (stage 3 in groups), hsdp1 or hsdp2 (stages 1 and 2 in groups): the "
                 "columns to show")
      ->capture_default_str();
  app.add_flag("--no-reshard", noReshard, "stage 3: keep units gathered from forward to backward");
  app.add_flag("--reduce-each", reduceEach, "reduce the gradients of every micro-batch at every stage");
  app.add_flag("--json", json, "print JSON instead of the table");
  if (const std::optional<int> code = parseArguments(app, argc, argv)) {
    return *code;
  }
  if (input.deviceBytes > 0 && input.deviceBytes < kLeastMemory) {
    throw UsageError(fmt::format("--memory {0} is {0} bytes; is {0}GB meant?", input.deviceBytes));
  }
  constexpr double kMostLayers = 1e9;  // more are refused by the planner, with a sentence
  if (input.units == 0 && input.unitElements == 0 && input.layers >= 1 && input.layers <= kMostLayers) {
    input.units = static_cast<uint64_t>(input.layers);
  }
  input.reshardAfterForward = noReshard ? 0 : 1;
  input.reduceEachMicroBatch = reduceEach ? 1 : 0;
  const std::optional<Cluster> cluster = readCluster(app, topologyFile, input);
  const std::vector<int> stages = chosenStages(stage, input);
  pealZeroPlan_t plan;
  if (pealZeroPlan(&input, &plan) != pealSuccess) {
    throw UsageError(pealZeroGetLastError(nullptr));
  }
  fmt::print("{}{}",
             json ? planJson(input, plan, stages, cluster).dump(2) : planTable(input, plan, stages, cluster),
             json ? "\n" : "");
  return 0;
}

}  // namespace
}  // namespace peal::tools

int main(int argc, char** argv) {
  return peal::tools::guard("peal-plan", [&] { return peal::tools::runPlan(argc, argv); });
}

#include "tools/plan/output.h"

#include <fmt/format.h>

#include <array>
#include <functional>

#include "tools/plan/quantity.h"

namespace peal::tools {
namespace {

constexpr std::array<const char*, pealZeroPlanStages> kNames{"0", "1", "2", "3", "hsdp", "hsdp1", "hsdp2"};
constexpr std::array<const char*, pealZeroPlanStages> kTitles{
    "stage 0", "stage 1", "stage 2", "stage 3", "HSDP", "HSDP stage 1", "HSDP stage 2"};
constexpr size_t kLabelWidth = 34;
constexpr size_t kColumnWidth = 14;

using Row = pealZeroPlanStage_t;
using Cell = std::function<std::string(const Row&)>;

Cell bytes(uint64_t Row::*field) {
  return [field](const Row& row) { return formatAmount(static_cast<double>(row.*field)); };
}
Cell amount(double Row::*field) {
  return [field](const Row& row) { return formatAmount(row.*field); };
}
Cell seconds(double Row::*field) {
  return [field](const Row& row) { return formatSeconds(row.*field); };
}

class Table {
 public:
  Table(const pealZeroPlan_t& plan, const std::vector<int>& stages) : plan_(plan), stages_(stages) {}

  void title(const std::string& text) {
    text_ += fmt::format("\n{:<{}}", text, kLabelWidth);
    for (const int stage : stages_) {
      text_ += fmt::format("{:>{}}", kTitles.at(static_cast<size_t>(stage)), kColumnWidth);
    }
    text_ += '\n';
  }
  void line(const char* label, const Cell& cell) {
    text_ += fmt::format("  {:<{}}", label, kLabelWidth - 2);
    for (const int stage : stages_) {
      text_ += fmt::format("{:>{}}", cell(plan_.stages[stage]), kColumnWidth);
    }
    text_ += '\n';
  }
  // The same of what a column's links are used for.
  void line(const char* label, const std::function<std::string(int stage)>& cell) {
    text_ += fmt::format("  {:<{}}", label, kLabelWidth - 2);
    for (const int stage : stages_) {
      text_ += fmt::format("{:>{}}", cell(stage), kColumnWidth);
    }
    text_ += '\n';
  }
  const std::string& text() const { return text_; }

 private:
  const pealZeroPlan_t& plan_;
  const std::vector<int>& stages_;
  std::string text_;
};

bool hasActivations(const pealZeroPlanInput_t& input) {
  return input.activationBytes > 0 || (input.layers > 0 && input.hidden > 0 && input.sequence > 0);
}

void addMemory(const pealZeroPlanInput_t& input, Table& table) {
  table.title(fmt::format("Memory of rank {}, bytes", input.rank));
  table.line("weights", bytes(&Row::weights));
  table.line("gradients", bytes(&Row::gradients));
  table.line("optimizer", bytes(&Row::optimizer));
  table.line("= model states", bytes(&Row::modelStates));
  table.line("fp32 accumulation", bytes(&Row::accumulation));
  table.line("gradient buffers", bytes(&Row::gradientBuffers));
  table.line("unit buffers", bytes(&Row::unitBuffers));
  if (input.group > 0) {
    table.line("replica buffers", bytes(&Row::replicaBuffers));
  }
  if (hasActivations(input)) {
    table.line("activations", bytes(&Row::activations));
  } else {
    table.line("activations", [](const Row&) { return "not given"; });
  }
  table.line("= total", bytes(&Row::total));
  if (input.deviceBytes > 0) {
    table.line("fits", [](const Row& row) { return row.fits != 0 ? "yes" : "no"; });
    table.line("fewest ranks that fit", [](const Row& row) {
      return row.ranksNeeded > 0 ? fmt::format("{}", row.ranksNeeded) : "none";
    });
  }
}

void addCommunication(const pealZeroPlanInput_t& input, Table& table) {
  table.title("Sent per rank and step");
  table.line("elements / parameters", [&](const Row& row) {
    return input.parameters == 0
               ? "-"
               : fmt::format("{:.4g}", row.elements / static_cast<double>(input.parameters));
  });
  table.line("bytes, gradients", amount(&Row::reduceBytesSent));
  table.line("bytes, weights", amount(&Row::gatherBytesSent));
  table.line("= bytes over the network", amount(&Row::bytesSent));
  if (input.group > 0) {
    table.line("bytes inside the group", amount(&Row::groupBytesSent));
  }
  table.line("all-reduces", bytes(&Row::allReduces));
  table.line("reduce-scatters", bytes(&Row::reduceScatters));
  table.line("all-gathers", bytes(&Row::allGathers));
}

void addTimes(const pealZeroPlanInput_t& input, const pealZeroPlan_t& plan, Table& table) {
  table.title("Time per step");
  const double computing = plan.computeSeconds;
  table.line("computing", [computing](const Row&) { return formatSeconds(computing); });
  table.line("network", seconds(&Row::networkSeconds));
  if (input.group > 0) {
    table.line("inside the group", seconds(&Row::groupSeconds));
  }
  table.line("communication that cannot hide", seconds(&Row::exposedSeconds));
  if (input.flopsPerSecond > 0) {
    table.line("tokens that hide the rest",
               [](const Row& row) { return fmt::format("{:.0f}", row.tokensToHide); });
  }
}

void addLinks(const pealZeroPlanInput_t& input, const pealZeroPlan_t& plan, const Cluster& cluster,
              Table& table) {
  const auto cell = [&](double LinkUse::*field, std::string (*format)(double)) {
    return [&, field, format](int stage) {
      return format(linkUse(cluster, input, plan.stages[stage], stage).*field);
    };
  };
  table.title(fmt::format("Sent per rank, {} x {} ranks", cluster.nodes, cluster.ranksPerNode));
  table.line("bytes inside the node", cell(&LinkUse::insideBytes, formatAmount));
  table.line("bytes between nodes", cell(&LinkUse::betweenBytes, formatAmount));
  if (cluster.insideBytesPerSecond > 0) {
    table.line("time inside, alone", cell(&LinkUse::insideSeconds, formatSeconds));
  }
  if (cluster.betweenBytesPerSecond > 0) {
    table.line("time between, alone", cell(&LinkUse::betweenSeconds, formatSeconds));
  }
}

nlohmann::ordered_json linksJson(const LinkUse& use) {
  return {{"insideBytes", use.insideBytes},
          {"betweenBytes", use.betweenBytes},
          {"insideSeconds", use.insideSeconds},
          {"betweenSeconds", use.betweenSeconds}};
}

nlohmann::ordered_json stageJson(const Row& row) {
  return {{"shardElements", row.shardElements},
          {"memory",
           {{"weights", row.weights},
            {"gradients", row.gradients},
            {"optimizer", row.optimizer},
            {"modelStates", row.modelStates},
            {"accumulation", row.accumulation},
            {"gradientBuffers", row.gradientBuffers},
            {"unitBuffers", row.unitBuffers},
            {"replicaBuffers", row.replicaBuffers},
            {"activations", row.activations},
            {"total", row.total},
            {"fits", row.fits != 0},
            {"ranksNeeded", row.ranksNeeded}}},
          {"communication",
           {{"elements", row.elements},
            {"bytesSent", row.bytesSent},
            {"reduceBytesSent", row.reduceBytesSent},
            {"gatherBytesSent", row.gatherBytesSent},
            {"groupBytesSent", row.groupBytesSent},
            {"replicaElements", row.replicaElements},
            {"allReduces", row.allReduces},
            {"reduceScatters", row.reduceScatters},
            {"allGathers", row.allGathers},
            {"messages", row.messages}}},
          {"time",
           {{"networkSeconds", row.networkSeconds},
            {"groupSeconds", row.groupSeconds},
            {"communicationSeconds", row.communicationSeconds},
            {"exposedSeconds", row.exposedSeconds},
            {"tokensToHide", row.tokensToHide}}}};
}

}  // namespace

const char* stageName(int stage) { return kNames.at(static_cast<size_t>(stage)); }

std::string planTable(const pealZeroPlanInput_t& input, const pealZeroPlan_t& plan,
                      const std::vector<int>& stages, const std::optional<Cluster>& cluster) {
  Table table(plan, stages);
  addMemory(input, table);
  addCommunication(input, table);
  if (cluster) {
    addLinks(input, plan, *cluster, table);
  }
  if (input.networkBytesPerSecond > 0 || input.flopsPerSecond > 0) {
    addTimes(input, plan, table);
  }
  std::string text =
      fmt::format("{} parameters on {} {}", formatAmount(static_cast<double>(input.parameters)), input.ranks,
                  input.ranks == 1 ? "rank" : "ranks");
  if (input.frozenParameters > 0) {
    text += fmt::format(", and {} frozen", formatAmount(static_cast<double>(input.frozenParameters)));
  }
  if (input.group > 0) {
    text += fmt::format(", shard groups of {}", input.group);
  }
  if (input.microBatches > 1) {
    text += fmt::format(", {} micro-batches", input.microBatches);
  }
  text += '\n' + table.text() + '\n';
  if (input.units == 0 && input.unitElements == 0) {
    text +=
        "Stage 3's totals leave out its buffers: nobody said into how many units the model is divided. Add "
        "--units.\n";
  }
  if (!hasActivations(input)) {
    text += "Totals leave out activations: add --activations, or --layers, --hidden and --sequence.\n";
  }
  text += plan.recommended < 0 ? fmt::format("Recommended: none. {}\n", plan.reason)
                               : fmt::format("Recommended: {}. {}\n",
                                             kTitles.at(static_cast<size_t>(plan.recommended)), plan.reason);
  return text;
}

nlohmann::ordered_json planJson(const pealZeroPlanInput_t& input, const pealZeroPlan_t& plan,
                                const std::vector<int>& stages, const std::optional<Cluster>& cluster) {
  nlohmann::ordered_json json;
  json["input"] = {{"parameters", input.parameters},
                   {"frozenParameters", input.frozenParameters},
                   {"ranks", input.ranks},
                   {"rank", input.rank},
                   {"group", input.group},
                   {"microBatches", input.microBatches},
                   {"weightBytes", input.weightBytes},
                   {"gradientBytes", input.gradientBytes},
                   {"optimizerBytes", input.optimizerBytes},
                   {"reduceBytes", input.reduceBytes},
                   {"replicaSumBytes", input.replicaSumBytes},
                   {"tokens", input.tokens},
                   {"flopsPerSecond", input.flopsPerSecond},
                   {"networkBytesPerSecond", input.networkBytesPerSecond},
                   {"groupBytesPerSecond", input.groupBytesPerSecond},
                   {"latencySeconds", input.latencySeconds},
                   {"deviceBytes", input.deviceBytes}};
  json["flops"] = plan.flops;
  json["forwardSeconds"] = plan.forwardSeconds;
  json["backwardSeconds"] = plan.backwardSeconds;
  json["computeSeconds"] = plan.computeSeconds;
  if (cluster) {
    json["cluster"] = {{"nodes", cluster->nodes},
                       {"ranksPerNode", cluster->ranksPerNode},
                       {"insideBytesPerSecond", cluster->insideBytesPerSecond},
                       {"betweenBytesPerSecond", cluster->betweenBytesPerSecond}};
  }
  for (const int stage : stages) {
    json["stages"][stageName(stage)] = stageJson(plan.stages[stage]);
    if (cluster) {
      json["stages"][stageName(stage)]["links"] =
          linksJson(linkUse(*cluster, input, plan.stages[stage], stage));
    }
  }
  if (plan.recommended >= 0) {
    json["recommended"] = stageName(plan.recommended);
  } else {
    json["recommended"] = nullptr;
  }
  json["reason"] = plan.reason;
  return json;
}

}  // namespace peal::tools

// The figures at the end of a run and their formulas, and the chart of both.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/train/ngram.h"
#include "tools/train/report.h"

namespace peal::train {

std::string memoryFormula(const TrainOptions& options) {
  const int optimizer = options.engine.optimizerBytes(), gradient = options.engine.gradientBytes();
  const char* shards = options.shardGroup > 0 ? "G" : "N";
  switch (options.stage) {
    case 0:
      return fmt::format("{}P", 2 + gradient + optimizer);
    case 1:
      return fmt::format("{}P + {}P/{}", 2 + gradient, optimizer, shards);
    case 2:
      return fmt::format("2P + {}P/{}", gradient + optimizer, shards);
    default:
      return fmt::format("{}P/{}", 2 + gradient + optimizer, shards);
  }
}

namespace {

// Of a step, before the factor for the ranks; inside groups if there are such.
std::string elementsFormula(const TrainOptions& options) {
  const size_t m = options.accumulate;
  const bool isReducedOnce = m == 1 || options.accumulation == Accumulation::Local;
  switch (options.stage) {
    case 0:
      return isReducedOnce ? "2P" : fmt::format("{}P", 2 * m);
    case 1:
      return isReducedOnce ? "2P" : fmt::format("{}P", m + 1);
    case 2:
      return fmt::format("{}P", m + 1);
    default:
      return fmt::format("{}P", (options.engine.keepsUnits ? 2 : 3) * m);
  }
}

// What all ranks sent for training and what the planner says, which speaks of one rank's mean.
std::vector<SentLine> sentLines(const TrainOptions& options, const Summary& summary, const Sent& sent,
                                int size) {
  const pealZeroPlanStage_t& row = summary.plan.stages[summary.planRow];
  const auto ofAll = [&](double perRank) {
    return static_cast<uint64_t>(std::llround(perRank * size)) * summary.stepsHere;
  };
  const auto elements = static_cast<uint64_t>(std::llround(row.elements)) * summary.stepsHere;
  const std::string perStep = elementsFormula(options);
  if (!options.hasReplicas(size)) {
    return {{"training", sent.elements, elements * static_cast<uint64_t>(size - 1), sent.bytes,
             ofAll(row.bytesSent), fmt::format("steps x (N-1) x {}", perStep)}};
  }
  const auto shards = static_cast<uint64_t>(options.shardGroup);
  const uint64_t replicas = static_cast<uint64_t>(size) / shards;
  const auto between = static_cast<uint64_t>(std::llround(row.replicaElements * options.shardGroup));
  const size_t times = options.accumulation == Accumulation::SameBits ? options.accumulate : 1;
  return {{"in groups", sent.elements, elements * replicas * (shards - 1), sent.bytes,
           ofAll(row.groupBytesSent), fmt::format("steps x R(G-1) x {}", perStep)},
          {"between", sent.betweenElements, between * (replicas - 1) * summary.stepsHere, sent.betweenBytes,
           ofAll(row.bytesSent), fmt::format("steps x (R-1) x {}P", 2 * times)}};
}

}  // namespace

double hiddenShare(double communicationSeconds, double waitSeconds) {
  return communicationSeconds > 0 ? std::max(0.0, 1 - waitSeconds / communicationSeconds) : 1;
}

Speed speedOf(const Summary& summary, const std::vector<StepTimes>& times) {
  const auto mean = [&](size_t first, size_t end) {
    StepTimes sum{};
    for (size_t i = first; i < end; ++i) {
      sum.seconds += times[i].seconds / static_cast<double>(end - first);
      sum.communicationSeconds += times[i].communicationSeconds / static_cast<double>(end - first);
      sum.waitSeconds += times[i].waitSeconds / static_cast<double>(end - first);
    }
    return sum;
  };
  Speed speed{};
  speed.isKnown = times.size() > 1;  // the first has what the start left
  if (!speed.isKnown) {
    return speed;
  }
  speed.measured = mean(1, times.size());
  const StepTimes early = mean(1, std::min(kPredictFrom, times.size()));
  speed.flopsPerSecond = summary.plan.flops / std::max(early.seconds - early.waitSeconds, 1e-9);
  const pealZeroPlanStage_t& row = summary.plan.stages[summary.planRow];
  const double bytes = row.bytesSent + row.groupBytesSent;
  speed.networkBytesPerSecond = early.communicationSeconds > 0 ? bytes / early.communicationSeconds : 0;
  speed.predicts = times.size() > kPredictFrom;
  if (speed.predicts) {
    speed.later = mean(kPredictFrom, times.size());
    pealZeroPlanInput_t input = summary.planned;
    input.flopsPerSecond = speed.flopsPerSecond;
    input.networkBytesPerSecond = speed.networkBytesPerSecond;
    const pealZeroPlan_t plan = zero::plan(input);
    speed.predictedExposedSeconds = plan.stages[summary.planRow].exposedSeconds;
    speed.predictedSeconds = plan.computeSeconds + speed.predictedExposedSeconds;
  }
  return speed;
}

namespace {

// Rank 0 makes all first values in fp32, and has them until they are distributed.
uint64_t firstValueBytes(uint64_t parameters, const tools::RankContext& context) {
  return context.rank == 0 ? parameters * sizeof(float) : 0;
}

}  // namespace

Summary summarize(const TrainOptions& options, const Text& text, const tools::RankContext& context,
                  Trainer& trainer) {
  Summary summary{};
  summary.steps = trainer.stepsDone();
  summary.stepsHere = trainer.stepsHere();
  summary.heldOutLoss = trainer.heldOutLoss();
  summary.weightsHash = trainer.weightsHash();
  summary.masterHash = trainer.masterHash();

  summary.planned = planInput(options, trainer.model(), context.rank, context.size);
  summary.plan = zero::plan(summary.planned);
  summary.parameters = summary.planned.parameters;
  constexpr int kGroupedRows[] = {0, pealZeroPlanHsdp1, pealZeroPlanHsdp2, pealZeroPlanHsdp};
  summary.planRow = options.hasReplicas(context.size) ? kGroupedRows[options.stage] : options.stage;
  const pealZeroPlanStage_t& stage = summary.plan.stages[summary.planRow];
  bool agrees = true;
  for (const pealZeroArena_t& arena : trainer.engine().memory()) {
    const bool isModelState = arena.kind == pealZeroModelState;
    summary.memory.push_back({arena.name, arena.bytes, arena.plannedBytes, isModelState});
    summary.modelStateBytes += isModelState ? arena.bytes : 0;
    agrees = agrees && arena.bytes == arena.plannedBytes;
  }
  summary.modelStateFormulaBytes = stage.modelStates;
  summary.workspaceBytes = trainer.model().workspaceBytes();
  summary.workspaceFormulaBytes = static_cast<uint64_t>(std::llround(
      workspaceBytesFor(trainer.model().shape(), options.batch, options.activations, options.device)));
  agrees = agrees && summary.modelStateBytes == summary.modelStateFormulaBytes;
  RankFigures mine{trainer.ownSteps(), residentMemory().peakBytes - trainer.residentBefore().nowBytes,
                   summary.workspaceFormulaBytes + firstValueBytes(summary.parameters, context)};
  for (const MemoryLine& line : summary.memory) {
    mine.residentPlannedBytes += line.plannedBytes;
  }
  summary.ranks = trainer.gathered(mine);
  summary.ranksWithOtherMemory = trainer.sumOverRanks(agrees ? 0 : 1);

  summary.fused = trainer.engine().fusedStatus();
  summary.fusedBuckets = trainer.engine().counters().calls[pealZeroFused];
  summary.replicaChecks = trainer.replicaChecks();
  summary.sent = sentLines(options, summary, trainer.sentTraining(), context.size);
  summary.sentEvaluating = trainer.sentEvaluating();
  if (context.rank == 0) {
    summary.bigramLoss =
        ngramLoss(text.trainingCharacters(), text.heldOutCharacters(), text.alphabetSize(), 1);
    summary.fourGramLoss =
        ngramLoss(text.trainingCharacters(), text.heldOutCharacters(), text.alphabetSize(), 3);
  }
  return summary;
}

nlohmann::json chart(const TrainOptions& options, const std::string& textName, const History& history,
                     const Summary& summary) {
  using nlohmann::json;
  const double last = history.steps.empty() ? 1 : history.steps.back();
  const auto level = [&](const char* name, double loss) {
    return json{{"name", name}, {"x", {0.0, last}}, {"y", {loss, loss}}, {"style", "dashed"}};
  };
  const json losses = {{"kind", "lines"},
                       {"title", "Loss"},
                       {"xLabel", "step"},
                       {"yLabel", "nats per character"},
                       {"series",
                        {json{{"name", "training"}, {"x", history.steps}, {"y", history.losses}},
                         json{{"name", "held out"},
                              {"x", history.heldOutSteps},
                              {"y", history.heldOutLosses},
                              {"style", "dots"}},
                         level("bigram", summary.bigramLoss), level("four-gram", summary.fourGramLoss)}}};
  json categories = json::array(), measured = json::array(), planned = json::array();
  for (const MemoryLine& line : summary.memory) {
    categories.push_back(line.name);
    measured.push_back(line.bytes);
    planned.push_back(line.plannedBytes);
  }
  const json memory = {
      {"kind", "bars"},
      {"title", fmt::format("Memory of one rank, model states {}", memoryFormula(options))},
      {"yLabel", "bytes"},
      {"yUnit", "bytes"},
      {"stacked", false},
      {"categories", categories},
      {"series",
       {json{{"name", "measured"}, {"values", measured}}, json{{"name", "formula"}, {"values", planned}}}}};
  return {{"title", fmt::format("peal-train on {}", textName)},
          {"subtitle",
           fmt::format("ZeRO stage {}{}, {} layers of width {}, held-out loss {:.3f}", options.stage,
                       options.shardGroup > 0 ? fmt::format(" in groups of {}", options.shardGroup) : "",
                       options.shape.layers, options.shape.width, summary.heldOutLoss)},
          {"panels", {losses, memory}}};
}

}  // namespace peal::train

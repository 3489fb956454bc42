#include "tools/train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tools/common/plot.h"

namespace peal::train {
namespace {

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

// 1234567 as "1,234,567".
std::string grouped(uint64_t value);

// "1 bucket", "2 buckets".
std::string counted(uint64_t count, const char* name, const char* plural) {
  return fmt::format("{} {}{}", grouped(count), name, count == 1 ? "" : plural);
}

std::string grouped(uint64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      text.push_back(',');
    }
    text.push_back(digits[i]);
  }
  return text;
}

const char* verdict(bool agrees) { return agrees ? "equal" : "DIFFERENT"; }

std::string comparison(double loss, double yardstick) {
  return fmt::format("{} by {:.3f}", loss < yardstick ? "beaten" : "ahead", std::abs(loss - yardstick));
}

}  // namespace

Reporter::Reporter(const TrainOptions& options, const Text& text, const tools::RankContext& context,
                   MetricsFile& metrics)
    : options_(options), text_(text), context_(context), metrics_(metrics), speaks_(context.rank == 0) {}

void Reporter::start(const Trainer& trainer) {
  if (!speaks_) {
    return;
  }
  const ModelShape& shape = trainer.model().shape();
  uint64_t parameters = 0;
  for (const ParameterSpec& spec : trainer.model().specs()) {
    parameters += spec.count();
  }
  const size_t trainingCharacters = text_.trainingCharacters().size();
  const size_t heldOutCharacters = text_.heldOutCharacters().size();
  fmt::print("peal-train: {} characters of {} to train on, {} held out, {} different\n",
             grouped(trainingCharacters), text_.name(), grouped(heldOutCharacters), text_.alphabetSize());
  if (text_.bpe()) {
    fmt::print("tokens: {} of byte pairs, {:.2f} characters each\n", text_.vocabulary(),
               static_cast<double>(trainingCharacters) / static_cast<double>(text_.training().size()));
  }
  fmt::print("model: {} parameters: {}, width {}, {}, context {}\n", grouped(parameters),
             counted(shape.layers, "layer", "s"), shape.width, counted(shape.heads, "head", "s"),
             shape.context);
  const uint64_t sequences = options_.sequencesPerStep(context_.size);
  const uint64_t room = options_.batch * options_.accumulate * static_cast<uint64_t>(context_.size);
  fmt::print("ranks: {} ({}), ZeRO stage {}{}; a step is {} tokens: {}\n", context_.size,
             context_.source == tools::RankSource::Launcher ? context_.launcher : "local processes",
             options_.stage,
             options_.hasReplicas(context_.size) ? fmt::format(" in groups of {}", options_.shardGroup) : "",
             grouped(sequences * shape.context),
             sequences == room ? fmt::format("{} sequences x {} per rank", options_.batch,
                                             counted(options_.accumulate, "micro-batch", "es"))
                               : fmt::format("{} of all ranks, {} at most in a micro-batch of one",
                                             counted(sequences, "sequence", "s"), options_.batch));
  const ComputeNames names = trainer.computeNames();
  fmt::print("compute: {}\n\n", names.sentence);
  std::fflush(stdout);
  if (!options_.resumePath.empty()) {
    fmt::print("resumed from {} after step {}: {} a step in {}{}\n\n", options_.resumePath,
               options_.firstStep, counted(sequences, "sequence", "s"),
               options_.accumulate > 1 ? "up to " : "", counted(options_.accumulate, "micro-batch", "es"));
  }
  metrics_.write({{"event", "start"},
                  {"firstStep", options_.firstStep},
                  {"text", text_.name()},
                  {"trainingCharacters", trainingCharacters},
                  {"heldOutCharacters", heldOutCharacters},
                  {"tokenizer", text_.bpe() ? "bpe" : "characters"},
                  {"vocabulary", text_.vocabulary()},
                  {"parameters", parameters},
                  {"layers", shape.layers},
                  {"width", shape.width},
                  {"heads", shape.heads},
                  {"context", shape.context},
                  {"batch", options_.batch},
                  {"accumulate", options_.accumulate},
                  {"ranks", context_.size},
                  {"launcher", context_.launcher},
                  {"stage", options_.stage},
                  {"optimizerBytes", options_.engine.optimizerBytes()},
                  {"shardGroup", options_.shards(context_.size)},
                  {"seed", options_.seed},
                  {"device", options_.device == ComputeDevice::Host ? "host" : "cuda"},
                  {"blasKernels", names.products},
                  {"loops", names.loops}});
}

void Reporter::step(const Trainer& trainer, const StepResult& result) {
  if (!speaks_) {
    return;
  }
  const uint64_t step = trainer.stepsDone();
  const pealZeroReport_t& report = result.report;
  times_.push_back({result.seconds, report.communicationSeconds, report.waitSeconds});
  const double tokensPerSecond = static_cast<double>(report.tokens) / context_.size / result.seconds;
  const double flopsPerToken = 6 * parametersOf(trainer.model().shape());
  history_.steps.push_back(static_cast<double>(step));
  history_.losses.push_back(result.loss);
  metrics_.write({{"event", "step"},
                  {"step", step},
                  {"loss", result.loss},
                  {"gradientNorm", result.report.gradientNorm},
                  {"clipFactor", result.report.clipFactor},
                  {"skipped", result.report.skipped != 0},
                  {"learningRate", result.learningRate},
                  {"lossPerToken", result.lossPerToken},
                  {"tokens", result.report.tokens},
                  {"tokensPerSecondPerRank", tokensPerSecond},
                  {"flopsPerSecondPerRank", flopsPerToken * tokensPerSecond},
                  {"hiddenShare", hiddenShare(report.communicationSeconds, report.waitSeconds)},
                  {"seconds", result.seconds},
                  {"communicationSeconds", result.report.communicationSeconds},
                  {"waitSeconds", result.report.waitSeconds}});
  ++steps_;
  tokens_ += result.report.tokens;
  seconds_ += result.seconds;
  communicationSeconds_ += result.report.communicationSeconds;
  waitSeconds_ += result.report.waitSeconds;
  if (result.report.skipped != 0) {
    fmt::print("step {:5}  skipped on all ranks: a gradient was infinite or not a number\n", step);
  }
  if (step % options_.logEvery != 0 && trainer.stepsHere() != 1) {
    return;
  }
  const double perStep = 1e3 / static_cast<double>(steps_);
  fmt::print(
      "step {:5}  loss {:.4f}  norm {:6.3f}  lr {:.2e}  {:6.0f} token/s  {:5.0f} ms/step  communication "
      "{:4.1f} ms{}, not hidden {:.1f} ms\n",
      step, result.loss, result.report.gradientNorm, result.learningRate,
      static_cast<double>(tokens_) / seconds_, seconds_ * perStep, communicationSeconds_ * perStep,
      communicationSeconds_ > seconds_ ? ""
                                       : fmt::format(" ({:.0f} %)", 100 * communicationSeconds_ / seconds_),
      waitSeconds_ * perStep);
  std::fflush(stdout);
  steps_ = tokens_ = 0;
  seconds_ = communicationSeconds_ = waitSeconds_ = 0;
}

void Reporter::heldOut(uint64_t step, double loss, uint64_t characters) {
  if (!speaks_) {
    return;
  }
  history_.heldOutSteps.push_back(static_cast<double>(step));
  history_.heldOutLosses.push_back(loss);
  fmt::print("step {:5}  held-out loss {:.4f} nats per character on {} of {} characters\n", step, loss,
             grouped(characters), grouped(text_.heldOutCharacters().size()));
  std::fflush(stdout);
  metrics_.write({{"event", "heldOut"}, {"step", step}, {"loss", loss}, {"characters", characters}});
}

void Reporter::saved(uint64_t step) {
  if (!speaks_) {
    return;
  }
  fmt::print("step {:5}  saved to {}\n", step, options_.savePath);
  std::fflush(stdout);
  metrics_.write({{"event", "saved"}, {"step", step}, {"path", options_.savePath}});
}

void Reporter::sample(uint64_t step, const std::string& text) {
  if (!speaks_) {
    return;
  }
  fmt::print("step {:5}  sample at temperature {}:\n----\n{}\n----\n", step, options_.temperature, text);
  std::fflush(stdout);
  metrics_.write({{"event", "sample"}, {"step", step}, {"text", text}});
}

// What the run achieved, and the planner's prediction of it from a few steps at the beginning.
nlohmann::json Reporter::printSpeed(const Summary& summary) {
  const Speed speed = speedOf(summary, times_);
  if (!speed.isKnown) {
    return nullptr;
  }
  fmt::print(
      "per rank: {:.0f} tokens/s, {:.3g} FLOP/s in steps, {:.0f} % of {:.2f} ms of communication a step "
      "hidden\n",
      summary.plan.flops / (6 * static_cast<double>(summary.parameters)) / speed.measured.seconds,
      summary.plan.flops / speed.measured.seconds,
      100 * hiddenShare(speed.measured.communicationSeconds, speed.measured.waitSeconds),
      1e3 * speed.measured.communicationSeconds);
  if (speed.predicts) {
    fmt::print("{:<34} {:>15} {:>15}\n", fmt::format("time of a step [ms], from the {}th", kPredictFrom + 1),
               "measured", "predicted");
    fmt::print("  {:<32} {:>15.2f} {:>15.2f}  from steps 2 to {}: {:.3g} FLOP/s, {:.3g} B/s\n", "step",
               1e3 * speed.later.seconds, 1e3 * speed.predictedSeconds, kPredictFrom, speed.flopsPerSecond,
               speed.networkBytesPerSecond);
    fmt::print("  {:<32} {:>15.2f} {:>15.2f}\n", "communication not hidden", 1e3 * speed.later.waitSeconds,
               1e3 * speed.predictedExposedSeconds);
  }
  return {{"flopsPerSecond", speed.flopsPerSecond},
          {"networkBytesPerSecond", speed.networkBytesPerSecond},
          {"secondsPerStep", speed.measured.seconds},
          {"hiddenShare", hiddenShare(speed.measured.communicationSeconds, speed.measured.waitSeconds)},
          {"predicts", speed.predicts},
          {"laterSecondsPerStep", speed.later.seconds},
          {"predictedSecondsPerStep", speed.predictedSeconds},
          {"laterExposedSeconds", speed.later.waitSeconds},
          {"predictedExposedSeconds", speed.predictedExposedSeconds}};
}

nlohmann::json Reporter::printRanks(const Summary& summary) {
  nlohmann::json ranks = nlohmann::json::array();
  double least[3] = {INFINITY, INFINITY, INFINITY}, most[3] = {};
  for (const RankFigures& rank : summary.ranks) {
    const OwnSteps& own = rank.steps;
    const double tokens = static_cast<double>(own.tokens) / own.seconds;
    const double figures[] = {tokens, 6 * static_cast<double>(summary.parameters) * tokens,
                              hiddenShare(own.communicationSeconds, own.waitSeconds)};
    for (size_t i = 0; i < std::size(figures); ++i) {
      least[i] = std::min(least[i], figures[i]);
      most[i] = std::max(most[i], figures[i]);
    }
    nlohmann::json told = nlohmann::json::object();
    if (options_.device == ComputeDevice::Host) {  // else what is planned is the device's
      told.update(
          {{"residentBytes", rank.residentBytes}, {"residentPlannedBytes", rank.residentPlannedBytes}});
    }
    if (own.steps > 0) {
      const auto steps = static_cast<double>(own.steps);
      told.update({{"tokensPerSecond", figures[0]},
                   {"flopsPerSecond", figures[1]},
                   {"hiddenShare", figures[2]},
                   {"secondsPerStep", own.seconds / steps},
                   {"communicationSecondsPerStep", own.communicationSeconds / steps},
                   {"waitSecondsPerStep", own.waitSeconds / steps}});
    }
    ranks.push_back(told);
  }
  if (summary.ranks.size() > 1 && summary.ranks[0].steps.steps > 0) {
    fmt::print(
        "all {} ranks: {:.0f} to {:.0f} tokens/s, {:.3g} to {:.3g} FLOP/s, {:.0f} to {:.0f} % hidden\n",
        summary.ranks.size(), least[0], most[0], least[1], most[1], 100 * least[2], 100 * most[2]);
  }
  return ranks;
}

void Reporter::printMemory(const Summary& summary) {
  fmt::print("\n{:<34} {:>15} {:>15}\n", fmt::format("memory of rank {} [bytes]", context_.rank), "measured",
             "planned");
  for (const MemoryLine& line : summary.memory) {
    fmt::print("  {:<32} {:>15} {:>15}  {}{}\n", line.name, grouped(line.bytes), grouped(line.plannedBytes),
               verdict(line.bytes == line.plannedBytes), line.isModelState ? "" : ", buffer");
  }
  fmt::print("  {:<32} {:>15} {:>15}  {}, {}\n", "model states", grouped(summary.modelStateBytes),
             grouped(summary.modelStateFormulaBytes),
             verdict(summary.modelStateBytes == summary.modelStateFormulaBytes), memoryFormula(options_));
  fmt::print("  {:<32} {:>15} {:>15}  {}, beside the engine\n", "activations and scratch",
             grouped(summary.workspaceBytes), grouped(summary.workspaceFormulaBytes),
             verdict(summary.workspaceBytes == summary.workspaceFormulaBytes));
  if (summary.memoryAgrees()) {
    fmt::print("  all {} ranks: every arena has the planned size\n", context_.size);
  } else {
    fmt::print("  {} of {} ranks have an arena whose size is not the planned one\n",
               summary.ranksWithOtherMemory, context_.size);
  }
  if (options_.device == ComputeDevice::Host) {  // else it is the device's
    fmt::print("  {:<32} {:>15} {:>15}  the planned sum of the above and of first values\n",
               "resident with engine and model", grouped(summary.ranks[0].residentBytes),
               grouped(summary.ranks[0].residentPlannedBytes));
  }
}

void Reporter::printSent(const Summary& summary) {
  fmt::print("\n{:<34} {:>15} {:>15}\n", "sent by all ranks", "measured", "formula");
  for (const SentLine& line : summary.sent) {
    fmt::print("  {:<32} {:>15} {:>15}  {}, {}\n",
               fmt::format("{}, {} steps: elements", line.where, summary.stepsHere), grouped(line.elements),
               grouped(line.elementsFormula), verdict(line.elements == line.elementsFormula), line.formula);
    fmt::print("  {:<32} {:>15} {:>15}  {}\n", "  bytes", grouped(line.bytes), grouped(line.bytesFormula),
               verdict(line.bytes == line.bytesFormula));
  }
  fmt::print("  {:<32} {:>15}\n", "held-out and samples: elements", grouped(summary.sentEvaluating));
  fmt::print("\nfused step: {} of {} of a step, {} in this run{}{}\n", summary.fused.fusedBuckets,
             counted(static_cast<uint64_t>(summary.fused.buckets), "bucket", "s"),
             grouped(summary.fusedBuckets), *summary.fused.reason != '\0' ? ": " : "", summary.fused.reason);
  if (summary.replicaChecks > 0) {
    fmt::print("\nwhat ranks hold alike was compared {}, by hashes: equal\n",
               counted(summary.replicaChecks, "time", "s"));
  }
}

void Reporter::end(const Summary& summary, const std::string& reason) {
  if (!speaks_) {
    return;
  }
  const uint64_t tokens =
      summary.stepsHere * options_.sequencesPerStep(context_.size) * options_.shape.context;
  fmt::print("\nstopped after {} steps: {}\n", summary.steps, reason);
  fmt::print("training took {:.1f} s: {} tokens, {:.0f} per second\n", summary.trainingSeconds,
             grouped(tokens),
             summary.trainingSeconds > 0 ? static_cast<double>(tokens) / summary.trainingSeconds : 0);
  const nlohmann::json speed = printSpeed(summary), ranks = printRanks(summary);
  printMemory(summary);
  printSent(summary);
  fmt::print("\nheld-out loss {:.4f} nats per character on all {} held-out characters\n", summary.heldOutLoss,
             grouped(text_.heldOutCharacters().size()));
  const double perToken = summary.heldOutLoss * static_cast<double>(text_.heldOutCharacters().size()) /
                          static_cast<double>(text_.heldOut().size());
  if (text_.bpe()) {
    fmt::print("  {:.4f} nats per token, {} of them\n", perToken, grouped(text_.heldOut().size()));
  }
  fmt::print("  bigram    {:.3f}  {}\n", summary.bigramLoss,
             comparison(summary.heldOutLoss, summary.bigramLoss));
  fmt::print("  four-gram {:.3f}  {}\n", summary.fourGramLoss,
             comparison(summary.heldOutLoss, summary.fourGramLoss));
  fmt::print("weights {} (bf16), masters {} (fp32)\n", hex(summary.weightsHash), hex(summary.masterHash));
  std::fflush(stdout);
  nlohmann::json memory = nlohmann::json::array();
  for (const MemoryLine& line : summary.memory) {
    memory.push_back({{"name", line.name},
                      {"bytes", line.bytes},
                      {"plannedBytes", line.plannedBytes},
                      {"modelState", line.isModelState}});
  }
  nlohmann::json between = nullptr;
  if (summary.sent.size() > 1) {
    const SentLine& line = summary.sent[1];
    between = {{"elementsSent", line.elements},
               {"elementsSentFormula", line.elementsFormula},
               {"bytesSent", line.bytes},
               {"bytesSentFormula", line.bytesFormula}};
  }
  metrics_.write({{"event", "end"},
                  {"reason", reason},
                  {"steps", summary.steps},
                  {"seconds", summary.trainingSeconds},
                  {"heldOutLoss", summary.heldOutLoss},
                  {"heldOutLossPerToken", perToken},
                  {"bigramLoss", summary.bigramLoss},
                  {"fourGramLoss", summary.fourGramLoss},
                  {"weights", hex(summary.weightsHash)},
                  {"masters", hex(summary.masterHash)},
                  {"speed", speed},
                  {"memory", memory},
                  {"modelStateBytes", summary.modelStateBytes},
                  {"modelStateFormulaBytes", summary.modelStateFormulaBytes},
                  {"ranks", ranks},
                  {"workspaceBytes", summary.workspaceBytes},
                  {"workspaceFormulaBytes", summary.workspaceFormulaBytes},
                  {"ranksWithOtherMemory", summary.ranksWithOtherMemory},
                  {"fusedBuckets", summary.fusedBuckets},
                  {"fusedReason", summary.fused.reason},
                  {"replicaChecks", summary.replicaChecks},
                  {"elementsSent", summary.sent.front().elements},
                  {"elementsSentFormula", summary.sent.front().elementsFormula},
                  {"bytesSent", summary.sent.front().bytes},
                  {"bytesSentFormula", summary.sent.front().bytesFormula},
                  {"betweenGroups", between},
                  {"elementsSentEvaluating", summary.sentEvaluating}});
  if (!options_.plotPath.empty()) {
    tools::plot(chart(options_, text_.name(), history_, summary), options_.plotPath);
    fmt::print("drawn: {}\n", options_.plotPath);
  }
}

}  // namespace peal::train

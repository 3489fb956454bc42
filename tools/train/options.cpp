#include "tools/train/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <numbers>
#include <vector>

#include "tools/common/arguments.h"
#include "tools/common/error.h"
#include "tools/common/plot.h"
#include "tools/common/sizes.h"
#include "tools/train/bpe.h"
#include "tools/train/resume.h"

namespace peal::train {
namespace {

using tools::UsageError;

constexpr double kLargestDecay = 1e6;      // and learning rate factor: the engine's limits
constexpr double kLeastEpsilon = 1.2e-38;  // the engine's, too
constexpr double kLongestLastWords = 3600;
constexpr double kLargest = 1e9;  // of every number that is not a size; keeps products far from overflow

void addModel(CLI::App& app, TrainOptions& options) {
  const auto count = CLI::Range(uint64_t{1}, uint64_t{1} << 20);
  app.add_option("--layers", options.shape.layers, "Transformer blocks")->check(count)->group("Model");
  app.add_option("--width", options.shape.width, "Width of the residual stream")
      ->check(count)
      ->group("Model");
  app.add_option("--heads", options.shape.heads, "Attention heads; must divide the width")
      ->check(count)
      ->group("Model");
  app.add_option("--context", options.shape.context, "Symbols that a prediction can see")
      ->check(count)
      ->group("Model");
}

void addTraining(CLI::App& app, TrainOptions& options) {
  const char* group = "Training";
  const auto count = CLI::Range(uint64_t{1}, uint64_t{1} << 20);
  const auto positive = tools::numberIn(0, kLargest), decay = tools::numberIn(0, kLargestDecay);
  app.add_option("--stage", options.stage,
                 "ZeRO stage: 0 shards nothing, 1 optimizer state, 2 and gradients, 3 and parameters")
      ->check(CLI::Range(0, 3))
      ->group(group);
  app.add_option("--shard-group", options.shardGroup,
                 "HSDP, stages 1 to 3: share the state among so many neighbouring ranks, such as those of a "
                 "node; each such group holds a replica")
      ->check(CLI::Range(1, 1 << 20))
      ->group(group)
      ->default_str("all ranks");
  app.add_option("--batch", options.batch, "Sequences of each rank in a micro-batch")
      ->check(count)
      ->group(group);
  app.add_option("--accumulate", options.accumulate, "Micro-batches of a step")->check(count)->group(group);
  app.add_flag_callback(
         "--accumulate-locally", [&options] { options.accumulation = Accumulation::Local; },
         "Stages 0 and 1 add up micro-batches on each rank and reduce once, stages 2 and 3 add them up in "
         "the "
         "shard groups, which exchange sums once: less traffic, other roundings")
      ->group(group);
  app.add_flag_callback(
         "--recompute", [&options] { options.activations = Activations::Recomputed; },
         "Keep only the blocks' inputs and compute the rest again in backward: less memory, the same bits")
      ->group(group);
  app.add_option("--steps", options.steps, "Steps at most")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 40))
      ->group(group);
  app.add_option("--until-loss", options.untilLoss,
                 "Stop when the held-out loss is below this (nats); exit code 1 if it never is")
      ->check(positive)
      ->group(group);
  app.add_option("--time-limit", options.timeLimitSeconds, "Stop after so many seconds of training")
      ->check(positive)
      ->group(group);
  app.add_option("--lr", options.learningRate, "Learning rate after the warm-up")
      ->check(positive)
      ->group(group);
  app.add_option("--min-lr", options.minLearningRate, "Learning rate at the last step")
      ->check(positive)
      ->group(group)
      ->default_str("a tenth of --lr");
  app.add_option("--warmup", options.warmup, "Steps of linear warm-up")->group(group);
  app.add_option("--weight-decay", options.weightDecay, "AdamW's decay of matrices")
      ->check(decay)
      ->group(group);
  app.add_option("--embedding-decay", options.embeddingDecay, "AdamW's decay of the embeddings; 0: none")
      ->check(decay)
      ->group(group)
      ->default_str("as --weight-decay");
  app.add_option("--embedding-lr", options.embeddingRate,
                 "Learning rate of the embeddings, times that of the rest")
      ->check(decay)
      ->group(group);
  app.add_option("--beta1", options.beta1, "AdamW's first moment")
      ->check(tools::numberIn(0, 1))
      ->group(group);
  app.add_option("--beta2", options.beta2, "AdamW's second moment")
      ->check(tools::numberIn(0, 1))
      ->group(group);
  app.add_option("--epsilon", options.epsilon, "AdamW's term beside the root of the second moment")
      ->check(tools::numberIn(kLeastEpsilon, 1))
      ->group(group);
  app.add_option("--clip", options.clip, "Largest global gradient norm; 0: no clipping")
      ->check(positive)
      ->group(group);
  app.add_option("--seed", options.seed, "Of first values, data order and samples")->group(group);
}

void addDevice(CLI::App& app, TrainOptions& options) {
  const char* group = "Device";
  app.add_option("--device", options.device,
                 "host, or cuda: model and engine on GPUs, the ranks of a machine dealt out to them in turn")
      ->transform(tools::oneOf<ComputeDevice>({{"host", ComputeDevice::Host}, {"cuda", ComputeDevice::Cuda}}))
      ->type_name("NAME")
      ->group(group)
      ->default_str("host");
  app.add_option("--cublas", options.cublasPath,
                 "The cuBLAS for --device cuda (libcublas.so of CUDA 12 or 13)")
      ->type_name("FILE")
      ->group(group)
      ->default_str("the installed one");
}

void addEngine(CLI::App& app, EngineChoices& engine) {
  const char* group = "ZeRO engine";
  app.add_option("--master", engine.master,
                 "Master weights: fp32, or remainder: 16 bits beside the bf16 weight, from which the fp32 "
                 "value comes back; 2 bytes less for each parameter")
      ->transform(tools::oneOf<pealZeroMasterFormat_t>(
          {{"fp32", pealZeroMasterFp32}, {"remainder", pealZeroMasterRemainder}}))
      ->type_name("NAME")
      ->group(group)
      ->default_str("fp32");
  app.add_option("--reduce", engine.reduceType,
                 "Gradients are handed over, sent and kept in this type; sums are fp32 in either")
      ->transform(
          tools::oneOf<pealZeroReduceType_t>({{"bf16", pealZeroReduceBf16}, {"fp32", pealZeroReduceFp32}}))
      ->type_name("NAME")
      ->group(group)
      ->default_str("bf16");
  app.add_flag_callback(
         "--no-skip", [&engine] { engine.skipsNonFinite = false; },
         "Make a step although a gradient is infinite or not a number. With --clip 0 at stages 1 and 2 steps "
         "are then fused: each bucket is reduced, updated and gathered at once during backward")
      ->group(group);
  app.add_flag("--stochastic-rounding", engine.roundsStochastically,
               "Round weights up or down at random, so that their mean is the master; by --seed")
      ->group(group);
  app.add_flag("--no-reshard", engine.keepsUnits,
               "Stage 3 keeps gathered weights from forward to backward: less traffic, more memory")
      ->group(group);
  app.add_option("--prefetch", engine.prefetchDepth,
                 "Stage 3: units gathered ahead of the one that computes; 0: each when it is needed")
      ->check(CLI::Range(0, 4096))
      ->group(group);
  app.add_option("--gathers-in-flight", engine.gathersInFlight,
                 "Stage 3: units whose gathering is under way at once, at most")
      ->check(CLI::Range(1, 4096))
      ->group(group)
      ->default_str("--prefetch and one more");
  app.add_option("--bucket-slots", engine.bucketSlots,
                 "Stages 2 and 3: buffers for gradients that are not yet reduced")
      ->check(CLI::Range(1, 64))
      ->group(group)
      ->default_str("2, at stage 3 it is 3");
  app.add_option("--unit-slots", engine.unitSlots, "Stage 3: buffers for gathered units")
      ->check(CLI::Range(2, 4096))
      ->group(group)
      ->default_str("2 and --prefetch, with --no-reshard all units");
  app.add_option(
         "--check-replicas", engine.checkReplicasEvery,
         "Steps between comparisons of what several ranks hold alike, by hashes; a resumed run begins "
         "with one; 0: never")
      ->group(group);
}

void addTextAndOutput(CLI::App& app, TrainOptions& options, std::string& bucketBytes) {
  const char* group = "Text and output";
  CLI::Option* text = app.add_option("--text", options.textPath, "UTF-8 file to train on")
                          ->type_name("FILE")
                          ->group(group)
                          ->default_str("Debian's bible-kjv");
  app.add_option("--tokenizer", options.tokenizer,
                 "characters, or bpe: byte pairs, joined as the text to train on has them")
      ->transform(tools::oneOf<Tokenizer>({{"characters", Tokenizer::Characters}, {"bpe", Tokenizer::Bpe}}))
      ->type_name("NAME")
      ->group(group)
      ->default_str("characters");
  app.add_option("--vocabulary", options.vocabulary, "Tokens of --tokenizer bpe, the 256 bytes included")
      ->check(CLI::Range(kBpeBytes, kBpeLargestVocabulary))
      ->group(group);
  app.add_option("--eval-every", options.evalEvery, "Steps between held-out losses; 0: only at the end")
      ->group(group);
  app.add_option("--eval-characters", options.evalCharacters,
                 "Held-out characters scored on the way; at the end it is all of them")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40))
      ->group(group);
  app.add_option("--log-every", options.logEvery, "Steps between progress lines")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40))
      ->group(group);
  app.add_option("--sample", options.sample, "Characters of the text sample at the end")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 20))
      ->group(group);
  app.add_option("--sample-every", options.sampleEvery, "Steps between samples; 0: only at the end")
      ->group(group);
  app.add_option("--temperature", options.temperature, "Of the samples")
      ->check(tools::numberIn(0.01, 100))
      ->group(group);
  app.add_option("--bucket-bytes", bucketBytes, "Gradients are reduced in buckets of this size")
      ->type_name("SIZE")
      ->group(group)
      ->default_str("1M");
  app.add_option("--plot", options.plotPath, "Draw the loss curve and the memory (.svg, .png, .pdf)")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--metrics,--json", options.metricsPath,
                 "Write everything measured as JSON lines, or the losses and times of the steps as CSV if it "
                 "ends in .csv. With --resume what the file has is kept")
      ->type_name("FILE")
      ->group(group);
  CLI::Option* save =
      app.add_option("--save", options.savePath,
                     "Save a checkpoint to this directory at the end and with --save-every, replacing this "
                     "run's before; another run's only with --overwrite")
          ->type_name("DIR")
          ->group(group);
  app.add_flag("--overwrite", options.overwrites, "Replace the checkpoint of another run at --save")
      ->group(group);
  app.add_option("--save-every", options.saveEvery, "Steps between checkpoints; 0: only at the end")
      ->group(group);
  CLI::Option* resume =
      app.add_option("--resume", options.resumePath, "Go on from this checkpoint, on any number of ranks")
          ->type_name("DIR")
          ->group(group);
  app.add_flag("--sample-only", options.onlySamples,
               "Make no step: print a sample of --resume's model. Needs no text; model and tokenizer are the "
               "checkpoint's")
      ->needs(resume)
      ->excludes(text)
      ->excludes(save)
      ->group(group);
  app.add_option(
         "--last-words", options.lastWordsSeconds,
         "Under a launcher that ends the ranks (SIGTERM) when one is lost: seconds in which rank 0 finds "
         "out why and tells how to go on; Open MPI kills after 1")
      ->check(tools::numberIn(0, kLongestLastWords))
      ->group(group);
  app.add_option("--trace", options.tracePath,
                 "Write when every unit, collective and wait of every rank began and ended, for Perfetto and "
                 "chrome://tracing (JSON)")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--trace-steps", options.traceSteps, "Steps traced, from the first; 0: all")->group(group);
}

void checkEngine(const TrainOptions& options) {
  const EngineChoices& engine = options.engine;
  if (engine.roundsStochastically && engine.master == pealZeroMasterRemainder) {
    throw UsageError(
        "--stochastic-rounding and --master remainder exclude each other: a remainder is what a master is "
        "more than its weight rounded to nearest");
  }
  const auto slots = static_cast<size_t>(engine.unitSlots);
  if (engine.keepsUnits && slots > 0 && slots < unitCount(options.shape)) {
    throw UsageError(fmt::format("--unit-slots {} cannot hold the {} units that --no-reshard keeps gathered",
                                 slots, unitCount(options.shape)));
  }
}

}  // namespace

std::optional<int> parseOptions(int argc, char** argv, TrainOptions& options) {
  CLI::App app{
      "Trains a GPT on real text, its state sharded over ranks by peal's ZeRO engine.\n"
      "Ranks are processes of this machine (--ranks N) or come from a launcher (mpirun, srun, torchrun).",
      "peal-train"};
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  std::string bucketBytes;
  tools::addRanksOption(app, options.ranks);
  addModel(app, options);
  addTraining(app, options);
  addDevice(app, options);
  addEngine(app, options.engine);
  addTextAndOutput(app, options, bucketBytes);
  if (const std::optional<int> code = tools::parseArguments(app, argc, argv)) {
    return code;
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0) {
      options.given.insert(option->get_name());
    }
  }
  if (!options.resumePath.empty()) {
    takeOver(options);
  }
  if (!bucketBytes.empty()) {
    options.bucketBytes = tools::parseSizeBytes(bucketBytes, "--bucket-bytes");
  }
  if (options.minLearningRate < 0) {
    options.minLearningRate = options.learningRate / 10;
  }
  if (options.embeddingDecay < 0) {
    options.embeddingDecay = options.weightDecay;
  }
  checkOptions(options);
  return std::nullopt;
}

void checkOptions(const TrainOptions& options) {
  const ModelShape& shape = options.shape;
  if (shape.width % shape.heads != 0) {
    throw UsageError(
        fmt::format("--width {} is not divisible by --heads {}: {} of the width would belong to no head",
                    shape.width, shape.heads, shape.width % shape.heads));
  }
  // Matrix products count rows and columns in 31 bits.
  const uint64_t limit = uint64_t{1} << 31;
  if (options.batch * shape.context >= limit || 4 * shape.width >= limit) {
    throw UsageError(fmt::format("--batch {} times --context {} is {} rows: at most {} are possible",
                                 options.batch, shape.context, options.batch * shape.context, limit - 1));
  }
  if (options.bucketBytes < 2) {
    throw UsageError(fmt::format("--bucket-bytes {} holds no gradient: at least 2", options.bucketBytes));
  }
  if (options.minLearningRate > options.learningRate) {
    throw UsageError(
        fmt::format("--min-lr {} is above --lr {}", options.minLearningRate, options.learningRate));
  }
  if (options.untilLoss > 0 && options.evalEvery == 0) {
    throw UsageError("--until-loss needs held-out losses on the way: --eval-every must be at least 1");
  }
  if (options.saveEvery > 0 && options.savePath.empty()) {
    throw UsageError("--save-every needs --save DIR: where to");
  }
  if (options.overwrites && options.savePath.empty()) {
    throw UsageError("--overwrite needs --save DIR: what to replace");
  }
  if (options.onlySamples && !(options.plotPath.empty() && options.tracePath.empty())) {
    throw UsageError("--sample-only makes no step, so there is nothing for --plot or --trace to show");
  }
  if (!options.cublasPath.empty() && options.device != ComputeDevice::Cuda) {
    throw UsageError(
        fmt::format("--cublas {} is for --device cuda: the host computes with OpenBLAS", options.cublasPath));
  }
  if (options.device == ComputeDevice::Cuda && !whyNoCuda().empty()) {
    throw UsageError(whyNoCuda());
  }
  checkEngine(options);
  if (options.beta1 >= 1 || options.beta2 >= 1) {
    throw UsageError(fmt::format("--beta1 {} and --beta2 {} must be below 1", options.beta1, options.beta2));
  }
  if (!options.plotPath.empty()) {
    tools::checkPlotPath(options.plotPath);
  }
}

void checkShardGroup(const TrainOptions& options, int size) {
  const int group = options.shardGroup;
  if (group == 0) {
    return;
  }
  if (options.stage == 0) {
    throw UsageError(fmt::format("--shard-group {} needs --stage 1, 2 or 3: stage 0 shares nothing", group));
  }
  if (size % group != 0) {
    std::vector<int> divisors;
    for (int divisor = 1; divisor <= size; ++divisor) {
      if (size % divisor == 0) {
        divisors.push_back(divisor);
      }
    }
    throw UsageError(fmt::format("--shard-group {} {} {} rank{}: use one of {}", group,
                                 group > size ? "is more than the" : "does not divide the", size,
                                 size == 1 ? "" : "s", fmt::join(divisors, ", ")));
  }
}

std::vector<std::string> notesOn(const TrainOptions& options) {
  std::vector<std::string> notes;
  const auto without = [&](const char* name, bool hasEffect, const std::string& needs) {
    if (options.isGiven(name) && !hasEffect) {
      notes.push_back(fmt::format("{} has no effect without {}", name, needs));
    }
  };
  for (const char* name : {"--no-reshard", "--prefetch", "--gathers-in-flight", "--unit-slots"}) {
    without(name, options.stage == 3, "--stage 3");
  }
  without("--bucket-slots", options.stage >= 2, "--stage 2 or 3");
  without("--vocabulary", options.tokenizer == Tokenizer::Bpe, "--tokenizer bpe");
  without("--accumulate-locally", options.accumulate > 1, "--accumulate 2 or more");
  if (options.isGiven("--warmup") && options.steps > 0 && options.warmup > options.steps) {
    notes.push_back(fmt::format("the learning rate never reaches --lr: --warmup {} is more than --steps {}",
                                options.warmup, options.steps));
  }
  return notes;
}

double learningRateAt(const TrainOptions& options, uint64_t step) {
  if (step <= options.warmup) {
    return options.learningRate * static_cast<double>(step) / static_cast<double>(options.warmup);
  }
  const double done = static_cast<double>(step - options.warmup) /
                      static_cast<double>(std::max<uint64_t>(options.steps - options.warmup, 1));
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * std::min(done, 1.0)));
  return options.minLearningRate + (options.learningRate - options.minLearningRate) * cosine;
}

}  // namespace peal::train

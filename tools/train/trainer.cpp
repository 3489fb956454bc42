#include "tools/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <numeric>
#include <utility>

#include "tools/common/error.h"
#include "tools/train/hash.h"
#include "tools/train/resume.h"

namespace peal::train {
namespace {

using Clock = std::chrono::steady_clock;

ModelShape shapeFor(const TrainOptions& options, const Text& text) {
  ModelShape shape = options.shape;
  shape.vocabulary = text.vocabulary();
  return shape;
}

// Everything that the ranks must have in common and the engine does not check.
uint64_t fingerprint(const TrainOptions& options, const Text& text) {
  Fnv1a hash;
  hash.add(text.training().data(), text.training().size() * sizeof(uint32_t));
  hash.add(text.heldOut().data(), text.heldOut().size() * sizeof(uint32_t));
  const uint64_t numbers[] = {options.shape.heads,    options.shape.context,
                              options.batch,          options.steps,
                              options.warmup,         options.seed,
                              options.evalEvery,      options.evalCharacters,
                              options.sample,         options.sampleEvery,
                              text.training().size(), options.firstStep,
                              options.sequences,      options.engine.checkReplicasEvery};
  hash.add(numbers, sizeof numbers);
  const double rates[] = {options.learningRate, options.minLearningRate, options.untilLoss,
                          options.temperature};
  hash.add(rates, sizeof rates);
  return hash.value();
}

}  // namespace

pealZeroOptions_t engineOptions(const TrainOptions& options) {
  pealZeroOptions_t zero = zero::defaultOptions();
  zero.stage = options.stage;
  zero.shardGroup = options.shardGroup;
  zero.microBatches = static_cast<int>(options.accumulate);
  zero.reduceEachMicroBatch = options.accumulation == Accumulation::SameBits ? 1 : 0;
  zero.bucketBytes = options.bucketBytes;
  zero.missingGradients = pealZeroMissingIsError;  // this model gives every gradient
  zero.clipNorm = options.clip;
  zero.beta1 = options.beta1;
  zero.beta2 = options.beta2;
  zero.epsilon = options.epsilon;
  zero.weightDecay = options.weightDecay;
  zero.master = options.engine.master;
  zero.skipNonFinite = options.engine.skipsNonFinite ? 1 : 0;
  zero.stochasticRounding = options.engine.roundsStochastically ? 1 : 0;
  zero.seed = options.seed;
  zero.prefetchDepth = options.engine.prefetchDepth;
  zero.gathersInFlight = options.engine.gathersInFlight;
  zero.reduceType = options.engine.reduceType;
  zero.bucketSlots = options.engine.bucketSlots;
  zero.unitSlots = options.engine.unitSlots;
  return zero;
}

pealZeroPlanInput_t planInput(const TrainOptions& options, const Model& model, int rank, int size) {
  pealZeroPlanInput_t input = zero::defaultPlanInput();
  for (const ParameterSpec& spec : model.specs()) {
    input.parameters += spec.count();
  }
  input.ranks = size;
  input.rank = rank;
  input.group = options.hasReplicas(size) ? options.shardGroup : 0;
  input.replicaSumBytes = 4;  // of the engine
  input.microBatches = static_cast<int64_t>(options.accumulate);
  input.reduceEachMicroBatch = options.accumulation == Accumulation::SameBits ? 1 : 0;
  input.tokens = static_cast<double>(options.batch * options.shape.context);
  input.bucketBytes = options.bucketBytes;
  input.units = unitCount(model.shape());
  input.gradientBytes = options.engine.gradientBytes();
  input.optimizerBytes = options.engine.optimizerBytes();
  input.reshardAfterForward = options.engine.keepsUnits ? 0 : 1;
  return input;
}

HostRanks::HostRanks(const tools::RankContext& context) : context_(context) {
  if (context.device == PEAL_DEVICE_HOST) {
    return;
  }
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  config.device = PEAL_DEVICE_HOST;
  config.deterministic = 1;
  config.commName = "peal-train's host memory";
  tools::check(pealCommSplit(context.comm, 0, context.rank, &split_, &config), "pealCommSplit", context.comm);
  context_.comm = split_;
}

HostRanks::~HostRanks() {
  // Ranks that wait for one that gave up must not: then it is aborted instead.
  if (split_ != nullptr && (std::uncaught_exceptions() > 0 || pealCommDestroy(split_) != pealSuccess)) {
    pealCommAbort(split_);
  }
}

namespace {

std::unique_ptr<Compute> makeCompute(const TrainOptions& options, const ModelShape& shape,
                                     const tools::RankContext& context) {
  if (options.device == ComputeDevice::Host) {
    return nullptr;
  }
  std::unique_ptr<Compute> compute = makeCudaCompute(context.device, options.cublasPath);
  checkDeviceMemory(options, shape, context.size, context.device);
  return compute;
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, const Text& text, const tools::RankContext& context)
    : options_(options),
      text_(text),
      ranks_(context),
      context_(ranks_.context()),
      tracer_(options, context_),
      cuda_(makeCompute(options, shapeFor(options, text), context)),
      model_(shapeFor(options, text), options.batch, options.activations, compute()),
      engine_(context.comm, engineOptions(options)),
      access_(engine_, model_.specs(), options.engine.reduceType, unitCount(model_.shape()), tracer_,
              compute()),
      inputs_(options.batch * options.shape.context),
      targets_(inputs_.size()) {
  agree();
  if (cuda_) {
    engine_.setStream(cuda_->stream());
  }
  tracer_.follow(engine_);
  pealZeroGroup_t embeddings = zero::defaultGroup();
  embeddings.learningRateFactor = options_.embeddingRate;
  embeddings.weightDecay = options_.embeddingDecay;
  Registration registration;
  registration.firstValues = [this](const ParameterSpec& spec, size_t index, float* values) {
    initialValues(spec, options_.seed, index, values);
  };
  registration.embeddings = engine_.addGroup(embeddings);
  registration.keptUnits = options_.engine.keepsUnits ? unitCount(model_.shape()) : 0;
  registerParameters(engine_, model_.specs(), registration, context_.rank);
  if (!options_.resumePath.empty()) {
    engine_.load(options_.resumePath);
    stepsDone_ = options_.firstStep;
    checkReplicas(0);
  }
}

void Trainer::checkReplicas(uint64_t step) {
  const uint64_t every = options_.engine.checkReplicasEvery;
  if (every > 0 && step % every == 0) {
    engine_.checkReplicas();
    ++replicaChecks_;
  }
}

void Trainer::save() {
  const std::string run = describeRun(options_, text_, options_.sequencesPerStep(context_.size), stepsDone_);
  engine_.save(options_.savePath, std::as_bytes(std::span(run)));
}

void Trainer::agree() {
  const std::vector<uint64_t> all = gathered(fingerprint(options_, text_));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      throw tools::ToolError(fmt::format(
          "rank {} has another text or other options than rank 0 (fingerprints {:016x} and {:016x}). "
          "Start all ranks with the same command line and the same file",
          rank, all[rank], all[0]));
    }
  }
}

void Trainer::gather(const void* mine, void* all, size_t sizeBytes) {
  tools::check(pealAllGather(mine, all, sizeBytes, pealUint8, context_.comm, nullptr), "pealAllGather",
               context_.comm);
}

void Trainer::addOverRanks(std::vector<double>& values) {
  tools::check(pealAllReduce(values.data(), values.data(), values.size(), pealFloat64, pealSum, context_.comm,
                             nullptr),
               "pealAllReduce", context_.comm);
}

uint64_t Trainer::sumOverRanks(uint64_t value) {
  uint64_t sum = 0;
  tools::check(pealAllReduce(&value, &sum, 1, pealUint64, pealSum, context_.comm, nullptr), "pealAllReduce",
               context_.comm);
  return sum;
}

StepResult Trainer::step(bool askStop) {
  const StepResult result = tracedStep(askStop);
  checkReplicas(stepsDone_);
  if (stepsHere() == options_.traceSteps) {
    finishTrace();
  }
  return result;
}

StepResult Trainer::tracedStep(bool askStop) {
  const auto start = Clock::now();
  const TraceScope stepScope(tracer_, TraceKind::Step, static_cast<int64_t>(stepsDone_) + 1);
  const Sent ahead = std::exchange(gatheredAhead_, Sent{});
  evaluation_.elements -= ahead.elements;
  evaluation_.bytes -= ahead.bytes;
  const size_t context = options_.shape.context;
  double loss = 0;
  uint64_t tokens = 0, characters = 0;
  StepResult result{};
  result.learningRate = learningRateAt(options_, stepsDone_ + 1);
  for (size_t micro = 0; micro < options_.accumulate; ++micro) {
    const TraceScope microScope(tracer_, TraceKind::MicroBatch, static_cast<int64_t>(micro));
    const uint64_t firstSlot =
        (micro * static_cast<uint64_t>(context_.size) + static_cast<uint64_t>(context_.rank)) *
        options_.batch;
    const uint64_t slots = options_.sequencesPerStep(context_.size);
    const size_t batch = std::min<uint64_t>(options_.batch, slots - std::min(slots, firstSlot));
    for (size_t b = 0; b < batch; ++b) {
      text_.sequence(options_.seed, stepsDone_, firstSlot + b, context, inputs_.data() + b * context,
                     targets_.data() + b * context);
    }
    {
      const TraceScope scope(tracer_, TraceKind::Pass, static_cast<int64_t>(Pass::Forward));
      loss += model_.loss(access_, inputs_.data(), targets_.data(), batch, context);
      characters += text_.characterCount(targets_.data(), batch * context);
      tokens += batch * context;
    }
    const TraceScope scope(tracer_, TraceKind::Pass, static_cast<int64_t>(Pass::Backward));
    if (micro + 1 == options_.accumulate) {
      engine_.expectStep(result.learningRate, tokens);
    }
    model_.backward(access_);
    engine_.endMicroBatch();
  }
  {
    const TraceScope scope(tracer_, TraceKind::Update);
    result.report = engine_.step(result.learningRate, tokens);
  }
  std::vector<double> sums = {loss, static_cast<double>(tokens), askStop ? 1.0 : 0.0,
                              static_cast<double>(characters)};
  addOverRanks(sums);
  result.lossPerToken = sums[0] / sums[1];
  result.loss = sums[0] / std::max(sums[3], 1.0);
  result.stopAsked = sums[2] > 0;
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (stepsHere() > 0) {
    ++ownSteps_.steps;
    ownSteps_.tokens += tokens;
    ownSteps_.seconds += result.seconds;
    ownSteps_.communicationSeconds += result.report.communicationSeconds;
    ownSteps_.waitSeconds += result.report.waitSeconds;
  }
  ++stepsDone_;
  return result;
}

// Summed loss of the windows that are this rank's. Every rank makes the same number of forward passes,
// because at stage 3 each is a collective: one without windows of its own makes them for nothing.
double Trainer::scoreWindows(const std::vector<size_t>& windows, size_t length) {
  const auto size = static_cast<size_t>(context_.size), rank = static_cast<size_t>(context_.rank);
  const std::vector<uint32_t>& heldOut = text_.heldOut();
  double loss = 0;
  for (size_t first = 0; first < windows.size(); first += size * options_.batch) {
    size_t sequences = 0;
    for (size_t b = 0; b < options_.batch; ++b) {
      const size_t index = first + b * size + rank;
      if (index >= windows.size()) {
        break;
      }
      const size_t start = windows[index];
      for (size_t i = 0; i < length; ++i) {
        const size_t at = start + i;
        inputs_[sequences * length + i] = at == 0 ? text_.training().back() : heldOut[at - 1];
        targets_[sequences * length + i] = heldOut[at];
      }
      ++sequences;
    }
    const size_t padded = std::max<size_t>(sequences, 1);  // what the last pass left there
    const double passLoss = model_.loss(access_, inputs_.data(), targets_.data(), padded, length);
    loss += sequences > 0 ? passLoss : 0;
  }
  return loss;
}

double Trainer::heldOutLoss(uint64_t characters) {
  const TraceScope scope(tracer_, TraceKind::HeldOut);
  const Sent before = sent();
  const size_t length = options_.shape.context, total = text_.heldOut().size();
  const size_t whole = total / length, tail = total % length;
  const size_t all = text_.heldOutCharacters().size();
  const size_t wanted =
      std::clamp<size_t>(std::min<uint64_t>(characters, all) * total / all / length, 1, whole);
  std::vector<size_t> windows;
  for (size_t i = 0; i < wanted; ++i) {
    windows.push_back(i * whole / wanted * length);
  }
  double loss = scoreWindows(windows, length);
  uint64_t scored = 0;
  for (const size_t window : windows) {
    scored += text_.characterCount(text_.heldOut().data() + window, length);
  }
  if (characters >= all && tail > 0) {
    loss += scoreWindows({whole * length}, tail);
    scored = all;
  }
  std::vector<double> sum = {loss};
  addOverRanks(sum);
  countEvaluation(before);
  return sum[0] / static_cast<double>(scored);
}

double Trainer::heldOutLoss() {
  if (wholeLossStep_ != stepsDone_) {
    wholeLoss_ = heldOutLoss(text_.heldOutCharacters().size());
    wholeLossStep_ = stepsDone_;
  }
  return wholeLoss_;
}

std::string Trainer::sample(uint64_t characters) {
  const TraceScope scope(tracer_, TraceKind::Sample);
  const Sent before = sent();
  const size_t vocabulary = model_.shape().vocabulary;
  std::vector<uint32_t> symbols = {text_.sampleStart()};
  std::vector<double> weights(vocabulary);
  for (uint64_t i = 0; i < characters; ++i) {
    const size_t length = std::min(symbols.size(), options_.shape.context);
    const float* logits = model_.predict(access_, symbols.data() + symbols.size() - length, length);
    const float largest = *std::max_element(logits, logits + vocabulary);
    double sum = 0;
    for (size_t v = 0; v < vocabulary; ++v) {
      sum += std::exp((static_cast<double>(logits[v]) - largest) / options_.temperature);
      weights[v] = sum;
    }
    // 's': a stream of its own.
    const uint64_t bits = mix(options_.seed ^ (static_cast<uint64_t>('s') << 56), stepsDone_, i);
    const double drawn = static_cast<double>(bits >> 11) * 0x1p-53 * sum;
    const auto found = std::upper_bound(weights.begin(), weights.end() - 1, drawn);
    symbols.push_back(static_cast<uint32_t>(found - weights.begin()));
  }
  symbols.erase(symbols.begin());
  countEvaluation(before);
  return text_.decode(symbols);
}

Sent Trainer::sent() const {
  const pealZeroCounters_t counters = engine_.counters();
  Sent sent{};
  for (const int counter : {pealZeroAllReduce, pealZeroReduceScatter, pealZeroAllGather}) {
    sent.elements += counters.elementsSent[counter];
    sent.bytes += counters.bytesSent[counter];
  }
  sent.betweenElements = counters.elementsSent[pealZeroReplicas];
  sent.betweenBytes = counters.bytesSent[pealZeroReplicas];
  return sent;
}

Sent Trainer::sentTraining() {
  const Sent own = sent();
  return {sumOverRanks(own.elements - evaluation_.elements), sumOverRanks(own.bytes - evaluation_.bytes),
          sumOverRanks(own.betweenElements), sumOverRanks(own.betweenBytes)};
}

// A unit that is kept stays gathered after an evaluation, too, and so spares the next step's forward pass
// what it would have sent: that is that step's.
void Trainer::countEvaluation(const Sent& before) {
  const Sent now = sent();
  const uint64_t elements = now.elements - before.elements, bytes = now.bytes - before.bytes;
  evaluation_.elements += elements;
  evaluation_.bytes += bytes;
  if (options_.engine.keepsUnits) {
    gatheredAhead_.elements += elements;
    gatheredAhead_.bytes += bytes;
  }
}

}  // namespace peal::train

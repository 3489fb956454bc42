// One rank's training: the engine, the model and the data, a step at a time. Called by the run loop, in the
// same order on every rank: every function but the constants is collective.
#pragma once
#include <string>
#include <type_traits>
#include <vector>

#include "peal/zero.hpp"
#include "tools/common/ranks.h"
#include "tools/train/engine_parameters.h"
#include "tools/train/memory.h"
#include "tools/train/model.h"
#include "tools/train/options.h"
#include "tools/train/text.h"
#include "tools/train/trace.h"

namespace peal::train {

struct StepResult {
  double loss;  // mean over all ranks, nats per character, with the weights before the step
  double lossPerToken;
  double learningRate;
  double seconds;
  bool stopAsked;  // some rank asked
  pealZeroReport_t report;
};

// Of this rank, over all its steps but the first, which has what the start left.
struct OwnSteps {
  uint64_t steps, tokens;
  double seconds, communicationSeconds, waitSeconds;
};

// For gradients and weights since the start: over all ranks or inside shard groups, and between those.
struct Sent {
  uint64_t elements, bytes;
  uint64_t betweenElements, betweenBytes;
};

// The ranks of a run with a communicator on host memory: the run's, or one split from it where that is on
// GPUs. For what the trainer itself tells other ranks.
class HostRanks {
 public:
  explicit HostRanks(const tools::RankContext& context);  // collective
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;
  ~HostRanks();
  const tools::RankContext& context() const { return context_; }

 private:
  tools::RankContext context_;
  pealComm_t split_ = nullptr;
};

class Trainer {
 public:
  // Throws ToolError if the ranks' texts or options differ.
  Trainer(const TrainOptions& options, const Text& text, const tools::RankContext& context);

  // askStop: this rank wants the run to end after this step, for example because its time is over.
  StepResult step(bool askStop);
  uint64_t stepsDone() const { return stepsDone_; }  // with those before a checkpoint
  uint64_t stepsHere() const { return stepsDone_ - options_.firstStep; }

  // Between steps, to --save.
  void save();

  // Mean loss per character over the held-out text, or over about `characters` of it in evenly spread windows
  // of one context. Sums are combined in rank order in fp64.
  double heldOutLoss(uint64_t characters);
  double heldOutLoss();  // all of it; known already if asked for twice between two steps

  // `characters` symbols after a line's end (or the text's first symbol), drawn by the seed; the same on
  // every rank. For the user on rank 0.
  std::string sample(uint64_t characters);

  uint64_t weightsHash() { return hashParameters(engine_, model_.specs(), pealZeroWeight); }
  uint64_t masterHash() { return hashParameters(engine_, model_.specs(), pealZeroMaster); }

  // By all ranks: for training, and elements for evaluation and samples.
  Sent sentTraining();
  uint64_t sentEvaluating() { return sumOverRanks(evaluation_.elements); }
  const OwnSteps& ownSteps() const { return ownSteps_; }
  uint64_t replicaChecks() const { return replicaChecks_; }  // so far; one that fails throws
  uint64_t sumOverRanks(uint64_t value);
  // Of all ranks. Collective.
  template <class T>
  std::vector<T> gathered(const T& mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<size_t>(context_.size));
    gather(&mine, all.data(), sizeof mine);
    return all;
  }

  const Model& model() const { return model_; }
  ComputeNames computeNames() const { return (cuda_ ? *cuda_ : hostCompute()).names(); }
  ResidentMemory residentBefore() const { return residentBefore_; }  // before engine and model were made
  zero::Engine& engine() { return engine_; }
  // Writes the trace, if one is being made.
  void finishTrace() { tracer_.finish(engine_, unitCount(model_.shape())); }

 private:
  void agree();
  void gather(const void* mine, void* all, size_t sizeBytes);
  void checkReplicas(uint64_t step);
  StepResult tracedStep(bool askStop);
  double scoreWindows(const std::vector<size_t>& windows, size_t length);
  void addOverRanks(std::vector<double>& values);
  Sent sent() const;  // by this rank
  void countEvaluation(const Sent& before);

  Compute& compute() { return cuda_ ? *cuda_ : hostCompute(); }

  const TrainOptions& options_;
  const Text& text_;
  HostRanks ranks_;
  const tools::RankContext& context_;  // of ranks_
  ResidentMemory residentBefore_ = residentMemory();
  Tracer tracer_;
  std::unique_ptr<Compute> cuda_;  // with --device cuda. Its stream is the engine's caller's, and outlives it
  Model model_;
  zero::Engine engine_;  // ends first: freeing memory of a GPU waits for what the engine has queued there
  EngineParameters access_;
  std::vector<uint32_t> inputs_, targets_;  // batch × context
  uint64_t stepsDone_ = 0;
  OwnSteps ownSteps_{};
  uint64_t replicaChecks_ = 0;
  Sent evaluation_{};                    // by this rank outside steps
  Sent gatheredAhead_{};                 // of that, since the last step, what the next one need not send
  double wholeLoss_ = 0;                 // of all held-out text
  uint64_t wholeLossStep_ = UINT64_MAX;  // after so many steps
};

// What the options ask of the engine and of the planner.
pealZeroOptions_t engineOptions(const TrainOptions& options);
pealZeroPlanInput_t planInput(const TrainOptions& options, const Model& model, int rank, int size);

}  // namespace peal::train

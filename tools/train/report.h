// What peal-train prints and draws. The ranks gather what was measured together; rank 0 alone prints.
#pragma once
#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/train/metrics.h"
#include "tools/train/trainer.h"

namespace peal::train {

// One run's losses, for the chart.
struct History {
  std::vector<double> steps, losses;
  std::vector<double> heldOutSteps, heldOutLosses;
};

struct MemoryLine {
  std::string name;
  uint64_t bytes;
  uint64_t plannedBytes;
  bool isModelState;
};

// What was sent, over all links or one kind of them.
struct SentLine {
  std::string where;
  uint64_t elements, elementsFormula;
  uint64_t bytes, bytesFormula;
  std::string formula;  // of elements
  bool agrees() const { return elements == elementsFormula && bytes == bytesFormula; }
};

// Of one rank.
struct RankFigures {
  OwnSteps steps;
  // What engine and model made resident, at most, beside the sum of all their figures.
  uint64_t residentBytes, residentPlannedBytes;
};

struct Summary {
  uint64_t steps, stepsHere;  // with those before a checkpoint, and without
  double trainingSeconds;     // without evaluation and samples
  double heldOutLoss;         // of the whole held-out text
  uint64_t weightsHash, masterHash;
  std::vector<MemoryLine> memory;  // of this rank
  uint64_t modelStateBytes;        // measured, and the formula's figure
  uint64_t modelStateFormulaBytes;
  uint64_t ranksWithOtherMemory;                   // ranks whose arenas differ from the planner's
  std::vector<RankFigures> ranks;                  // of all
  uint64_t workspaceBytes, workspaceFormulaBytes;  // the model's own memory: not the engine's, but beside it
  pealZeroPlanInput_t planned;                     // of this rank
  pealZeroPlan_t plan;
  int planRow;  // in it, of this run
  uint64_t parameters;
  std::vector<SentLine> sent;   // for training, by all ranks in all steps
  uint64_t sentEvaluating;      // elements
  pealZeroFusedStatus_t fused;  // of a step's buckets
  uint64_t fusedBuckets;        // of all steps
  uint64_t replicaChecks;
  double bigramLoss, fourGramLoss;  // rank 0
  bool memoryAgrees() const { return ranksWithOtherMemory == 0; }
  bool sentAgrees() const {
    return std::all_of(sent.begin(), sent.end(), [](const SentLine& line) { return line.agrees(); });
  }
};

// Of one step on this rank, or the mean of several.
struct StepTimes {
  double seconds, communicationSeconds, waitSeconds;
};

// Speed over all steps but the first, and the planner's figures for the steps after the first kPredictFrom
// from what those showed: arithmetic per second outside of waits, and bytes per second of communication.
constexpr size_t kPredictFrom = 11;
struct Speed {
  bool isKnown, predicts;
  StepTimes measured, later;
  double flopsPerSecond, networkBytesPerSecond;
  double predictedSeconds, predictedExposedSeconds;
};
Speed speedOf(const Summary& summary, const std::vector<StepTimes>& times);

// Of the communication that went on while the model computed.
double hiddenShare(double communicationSeconds, double waitSeconds);

// Collective.
Summary summarize(const TrainOptions& options, const Text& text, const tools::RankContext& context,
                  Trainer& trainer);

// Rank 0's output. The others make one that is silent.
class Reporter {
 public:
  Reporter(const TrainOptions& options, const Text& text, const tools::RankContext& context,
           MetricsFile& metrics);

  void start(const Trainer& trainer);
  void step(const Trainer& trainer, const StepResult& result);
  void heldOut(uint64_t step, double loss, uint64_t characters);
  void saved(uint64_t step);
  void sample(uint64_t step, const std::string& text);
  void end(const Summary& summary, const std::string& reason);

 private:
  nlohmann::json printSpeed(const Summary& summary);
  nlohmann::json printRanks(const Summary& summary);
  void printMemory(const Summary& summary);
  void printSent(const Summary& summary);
  void draw(const Summary& summary);

  const TrainOptions& options_;
  const Text& text_;
  const tools::RankContext& context_;
  MetricsFile& metrics_;
  bool speaks_;
  History history_;
  std::vector<StepTimes> times_;
  // Since the last progress line.
  uint64_t steps_ = 0, tokens_ = 0;
  double seconds_ = 0, communicationSeconds_ = 0, waitSeconds_ = 0;
};

// The description of the chart of a run, for tools/common/plot.h.
nlohmann::json chart(const TrainOptions& options, const std::string& textName, const History& history,
                     const Summary& summary);

// The formula of ZeRO for the bytes of model states per rank, as text.
std::string memoryFormula(const TrainOptions& options);

}  // namespace peal::train

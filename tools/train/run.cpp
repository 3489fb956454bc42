#include "tools/train/run.h"

#include <fmt/format.h>

#include <chrono>

#include "tools/common/error.h"
#include "tools/train/report.h"
#include "tools/train/trainer.h"

namespace peal::train {
namespace {

// Whether the held-out loss is below --until-loss. A part of the held-out text is scored every so many
// steps; only when that suggests success is the whole scored, which alone decides.
class LossTarget {
 public:
  LossTarget(const TrainOptions& options, Trainer& trainer, Reporter& reporter, uint64_t heldOutCharacters)
      : options_(options), trainer_(trainer), reporter_(reporter), all_(heldOutCharacters) {}

  bool reached() {
    const double part = trainer_.heldOutLoss(options_.evalCharacters);
    reporter_.heldOut(trainer_.stepsDone(), part, std::min(options_.evalCharacters, all_));
    if (options_.untilLoss <= 0 || part + bias_ >= options_.untilLoss) {
      return false;
    }
    const double whole = trainer_.heldOutLoss();
    reporter_.heldOut(trainer_.stepsDone(), whole, all_);
    bias_ = whole - part;
    return whole < options_.untilLoss;
  }

 private:
  const TrainOptions& options_;
  Trainer& trainer_;
  Reporter& reporter_;
  uint64_t all_;
  double bias_ = 0;  // the whole's loss less the part's, when last both were known
};

bool isDue(uint64_t step, uint64_t every) { return every > 0 && step % every == 0; }

struct Ending {
  std::string reason;
  double seconds;  // in steps
};

Ending train(const TrainOptions& options, Trainer& trainer, Reporter& reporter, LossTarget& target) {
  double seconds = 0;
  const auto start = std::chrono::steady_clock::now();
  while (trainer.stepsDone() < options.steps) {
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const StepResult result = trainer.step(options.timeLimitSeconds > 0 && passed > options.timeLimitSeconds);
    seconds += result.seconds;
    reporter.step(trainer, result);
    if (isDue(trainer.stepsDone(), options.evalEvery) && target.reached()) {
      return {fmt::format("the held-out loss is below {}", options.untilLoss), seconds};
    }
    if (isDue(trainer.stepsDone(), options.sampleEvery)) {
      reporter.sample(trainer.stepsDone(), trainer.sample(options.sample));
    }
    if (isDue(trainer.stepsDone(), options.saveEvery) && trainer.stepsDone() < options.steps) {
      trainer.save();
      reporter.saved(trainer.stepsDone());
    }
    if (result.stopAsked) {
      return {fmt::format("the time limit of {} s has passed", options.timeLimitSeconds), seconds};
    }
  }
  return {"all steps are done", seconds};
}

}  // namespace

int runRank(const TrainOptions& options, const Text& text, MetricsFile& metrics,
            const tools::RankContext& context) {
  Trainer trainer(options, text, context);
  Reporter reporter(options, text, context, metrics);
  if (options.onlySamples) {
    reporter.sample(trainer.stepsDone(), trainer.sample(options.sample));
    return 0;
  }
  reporter.start(trainer);
  LossTarget target(options, trainer, reporter, text.heldOutCharacters().size());
  const Ending ending = train(options, trainer, reporter, target);
  trainer.finishTrace();
  if (!options.savePath.empty()) {
    trainer.save();
    reporter.saved(trainer.stepsDone());
  }
  if (options.sample > 0) {
    reporter.sample(trainer.stepsDone(), trainer.sample(options.sample));
  }
  Summary summary = summarize(options, text, context, trainer);
  summary.trainingSeconds = ending.seconds;
  reporter.end(summary, ending.reason);
  const bool isMissed = options.untilLoss > 0 && !(summary.heldOutLoss < options.untilLoss);
  if (isMissed && context.rank == 0) {
    fmt::print(stderr, "peal-train: the held-out loss {:.4f} has not come below --until-loss {}\n",
               summary.heldOutLoss, options.untilLoss);
  }
  return summary.memoryAgrees() && summary.sentAgrees() && !isMissed ? 0 : tools::kExitFailure;
}

}  // namespace peal::train

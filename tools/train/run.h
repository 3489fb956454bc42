// The training run of one rank: steps, evaluations, when to stop, and the report.
#pragma once
#include "tools/common/ranks.h"
#include "tools/train/metrics.h"
#include "tools/train/options.h"
#include "tools/train/text.h"

namespace peal::train {

// Returns the exit code: 0, or 1 if memory or traffic were not what the formulas say, or --until-loss was not
// reached.
int runRank(const TrainOptions& options, const Text& text, MetricsFile& metrics,
            const tools::RankContext& context);

}  // namespace peal::train

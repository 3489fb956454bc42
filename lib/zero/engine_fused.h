// The fused step: buckets that are reduced, updated and gathered by one collective while backward goes on.
//
// Two-phase, a step needs the whole gradient first (its norm, whether it is finite), then updates and
// gathers. Where nothing does, and the trainer has said before its last backward what the step will be, a
// bucket can do all three at once when its gradients are there and nobody reads its weights any more, which
// is when its units have been left. Which buckets do so is known before a step begins and the same on
// every rank, so the order of collectives is: bucket by bucket, one after another, fused or only reduced.
//
// Called by Engine and Gradients on the caller's thread. On host memory the updates run on the stream's
// thread: what they write (the squares) is read after the marks of all buckets. On GPUs a bucket is one call
// of pealReduceAdamwGather.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/zero/collectives.h"
#include "lib/zero/model.h"
#include "lib/zero/norm.h"

namespace peal::zero {

class Gradients;
class Optimizer;
class Weights;

// A learning rate as ranks compare them, by a sum over ranks: so many words.
inline constexpr size_t kRateWords = 4;
void stateRate(double learningRate, int64_t* words);
// Whether ranks whose words have these sums stated one and the same.
bool ratesAgree(const int64_t* sums, int ranks);

// Of the small all-reduces: of a step (squares, a flag, tokens, the rate) and of its announcement.
inline constexpr size_t kControlWords = kSquareLimbs + 2 + kRateWords;
inline constexpr size_t kAnnouncedWords = 1 + kRateWords;

class FusedStep {
 public:
  struct Announcement {
    double learningRate;
    uint64_t localTokens;
  };

  // At the seal, when the parts have their memory, and when the layout's buckets have become others.
  void prepare(const Model& model, Collectives& collectives, Gradients& gradients, Weights& weights,
               Optimizer& optimizer);

  // updates: made before this step.
  void announce(const Announcement& announcement, uint64_t updates);
  const std::optional<Announcement>& announced() const { return announced_; }
  // What an announced step does with its buckets. The reason: why not all are fused; empty if all are.
  size_t fusedBuckets() const { return fusedBuckets_; }
  const std::string& reason() const { return reason_; }

  // This is a step's last micro-batch, and some of its buckets are fused.
  bool isActive() const;
  // The bucket has all gradients, but its weights are still read.
  bool holdsBack(size_t bucket) const { return takes(bucket) && openUnits_[bucket] > 0; }
  bool takes(size_t bucket) const { return isActive() && fuses_[bucket] && !parts_[bucket].late; }
  // The bucket's buffer is needed before its units are left: this step reduces it now and updates it later.
  // The order of calls decides that, so it is the same on all ranks if they make the same calls.
  void giveUp(size_t bucket);
  // The unit's gradients are complete and its weights are not read any more before the step.
  void unitLeft(size_t unit);
  // Queues all three for the bucket, whose gradients lie at `from`.
  Result<void> run(size_t bucket, Elements from);

  // Buckets that this step has fused so far, and what their reduced gradients add to the norm: on GPUs
  // nothing, since those are kept.
  bool did(size_t bucket) const { return parts_[bucket].ran; }
  bool didSquares(size_t bucket) const { return did(bucket) && isOnHost(); }
  uint64_t ranBuckets() const { return ran_; }
  const SquareSum& squares() const { return squares_; }
  void endStep();

 private:
  // A bucket, for the stream, which does not look at the flags. The sums change before the bucket is queued.
  struct Part {
    FusedStep* step;
    size_t bucket;
    float* sums = nullptr;  // of the micro-batches before, or nullptr
    bool ran = false;
    bool late = false;  // of this step
  };
  std::string whyNone() const;
  std::pair<int, int> unitsOf(size_t bucket) const;  // the first and the last
  void chooseBuckets();
  void dropWhatHoldsBuffers();
  bool isOnHost() const;
  bool isOneCall(size_t bucket) const;
  Result<void> begin();
  Result<void> beginUpdate();
  static void apply(void* part, void* values, size_t first, size_t count);

  const Model* model_ = nullptr;
  Collectives* collectives_ = nullptr;
  Gradients* gradients_ = nullptr;
  Weights* weights_ = nullptr;
  Optimizer* optimizer_ = nullptr;
  std::vector<bool> fuses_;                        // per bucket
  std::vector<std::vector<size_t>> unitsBuckets_;  // per unit: those with parameters of it
  std::vector<size_t> openUnits_;                  // per bucket: units not left in this micro-batch
  size_t fusedBuckets_ = 0;
  std::string reason_;

  std::optional<Announcement> announced_;
  uint64_t updates_ = 0;
  uint64_t ran_ = 0;
  std::vector<Part> parts_;
  std::array<int64_t, kAnnouncedWords> control_{};  // tokens, and the learning rate
  // Of the stream's thread until the marks are passed.
  bool agreed_ = false;  // the ranks on what the step is
  SquareSum squares_;
};

}  // namespace peal::zero

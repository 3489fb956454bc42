// The optimizer's update of owned elements of bf16 weights as calls of pealAdamwStep, where the state is a
// GPU's: which calls each bucket needs (one of fp32 weights none), and the tables that they read on the
// device. The bits are those of the host's loops.
//
// Owned and called by Optimizer. Everything is queued in the caller's queue; nothing waits once it is made.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/zero/arena.h"
#include "lib/zero/model.h"
#include "peal/adamw.h"

namespace peal::zero {

// Where the state of element 0 lies.
struct OptimizerState {
  float *master, *moment1, *moment2;
};

class DeviceSteps {
 public:
  Result<void> allocate(const Model& model, const std::shared_ptr<Device>& device,
                        const OptimizerState& state);
  // The layout's buckets are these, or have become these. Allocates nothing on the device: that would wait
  // for all its streams, and with them for other ranks. segments: of each bucket's owned part.
  Result<void> followLayout(const std::vector<std::vector<Segment>>& segments);
  // As Optimizer's. Nothing: the calls skip.
  enum class Does { Update, Nothing };
  Result<void> beginUpdate(double learningRate, uint64_t step, double gradientScale, Does does);
  Result<void> update(size_t bucket, const uint16_t* gradient, uint16_t* weight);
  // The update of a bucket whose elements all have one group (and, where rounding is random, numbers that go
  // on) as a part of pealReduceAdamwGather. reduced: where the sums are kept.
  pealAdamw_t fusedCall(size_t bucket, void* reduced) const;

 private:
  // Neighbouring segments of one group whose numbers go on: one call.
  struct Run {
    uint64_t offset;  // from the bucket's owned part
    int group;
    pealAdamw_t state;
  };
  void addRuns(const std::vector<Segment>& segments, const Owned& part,
               std::vector<pealAdamwSegment_t>& table);

  const Model* model_ = nullptr;
  std::shared_ptr<Device> device_;
  OptimizerState state_{};
  std::vector<Run> runs_;                    // bucket by bucket, and an empty one
  std::vector<size_t> firstRun_;             // of each bucket, and of the one behind the last
  Arena decay_, controls_;                   // on the device: segments of all runs; a control block for each
  std::vector<pealAdamwControl_t> control_;  // of the running update
};

}  // namespace peal::zero

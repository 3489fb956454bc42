// Ranks as threads of the test, each with its communicator, and a small model with gradients that a formula
// gives, so that a test knows every number without a framework.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "peal/zero.hpp"

namespace peal::zero::test {

// Runs body(rank, comm) on `ranks` threads. A body that throws aborts its communicator, so that the others
// return too; the first exception is thrown again here.
void onRanks(int ranks, const std::function<void(int rank, pealComm_t comm)>& body);

struct ModelParameter {
  uint64_t elements;
  int unit;
  pealZeroDecay_t decay = pealZeroDecay;
  int group = 0;
  bool frozen = false;
  int tiedTo = -1;  // the parameter that this is another name of
  int dtype = -1;   // -1: the engine's
  bool trains() const { return !frozen && tiedTo < 0; }
};
using Shape = std::vector<ModelParameter>;

// A few units of uneven sizes, with zero-length, tiny and larger parameters.
Shape unevenShape();

// Element i of parameter p, first value: a fixed pattern of both signs around 0.1.
float initialValue(size_t parameter, uint64_t element);

// The gradient as a function of where it is and of the weight (bf16) that is there: so an error in a weight
// shows in every later step. Depends on rank and micro-batch.
float syntheticValue(size_t parameter, uint64_t element, int rank, uint64_t step, int microBatch,
                     float weight);
// Of a bf16 weight, rounded once to bf16.
uint16_t syntheticGradient(size_t parameter, uint64_t element, int rank, uint64_t step, int microBatch,
                           uint16_t weight);

// One engine trained on the synthetic gradients.
class Trainer {
 public:
  Trainer(pealComm_t comm, int rank, const pealZeroOptions_t& options, const Shape& shape,
          const std::vector<int>& keptUnits = {}, const std::vector<pealZeroGroup_t>& groups = {});

  // Changes a gradient before it is handed over; may be empty. Arguments: parameter, micro-batch, values.
  std::function<void(size_t, int, uint16_t*)> tamper;
  std::function<void(size_t, int, float*)> tamperFp32;  // with pealZeroReduceFp32
  // Tokens of a rank, all micro-batches of a step together.
  std::function<uint64_t(int rank)> tokens = [](int rank) { return 16 + 5 * static_cast<uint64_t>(rank); };
  // Not empty: all units are entered together for backward, and gradients handed over in this order.
  std::vector<size_t> order;
  // After each gradient that is handed over; may be empty.
  std::function<void(size_t parameter)> handedOver;
  // Steps are announced before their last backward pass.
  bool announces = false;
  // Not empty: the number of a step's micro-batches, all but the last inside a NoSync.
  std::function<int(uint64_t step)> microBatchesOf;
  // Parameters whose gradient is not handed over.
  std::vector<size_t> withheld;

  pealZeroReport_t step(double learningRate = 1e-2);
  // All parameters that have such values, in the order of registration, without second names, on every rank.
  std::vector<float> read(pealZeroTensor_t tensor);
  Engine& engine() { return engine_; }
  uint64_t elements() const;  // trained
  // As after so many steps, for the gradients; the engine is not touched.
  void continueAfter(uint64_t steps) { steps_ = steps; }

 private:
  void forward();
  void runMicroBatch(int microBatch, bool announced, double learningRate);
  void backward(int microBatch);
  void backwardInOrder(int microBatch);
  void handOver(size_t parameter, int microBatch);
  void writeGradient(size_t parameter, int microBatch);

  int rank_;
  int microBatches_;
  bool isFp32_, hasFp32Weights_;
  Shape shape_;
  int units_;
  uint64_t steps_ = 0;
  Engine engine_;
};

float widen(uint16_t bf16);
uint16_t roundToBf16(float value);

}  // namespace peal::zero::test

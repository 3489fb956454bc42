// The model's view of the ZeRO engine: bf16 weights widened when read, fp32 gradients rounded once when
// handed over, or as they are if the engine takes fp32. Called by the model; never keeps a pointer of the
// engine beyond a call.
#pragma once
#include <functional>
#include <vector>

#include "peal/zero.hpp"
#include "tools/train/compute.h"
#include "tools/train/parameters.h"
#include "tools/train/trace.h"

namespace peal::train {

class EngineParameters : public ParameterAccess {
 public:
  EngineParameters(zero::Engine& engine, const std::vector<ParameterSpec>& specs,
                   pealZeroReduceType_t reduceType, size_t units, Tracer& tracer,
                   Compute& compute = hostCompute())
      : engine_(engine),
        specs_(specs),
        reduceType_(reduceType),
        tracer_(tracer),
        compute_(compute),
        entered_(units) {}

  void enter(size_t unit, Pass pass) override;
  void leave(size_t unit, Pass pass) override;
  void read(size_t parameter, float* values) override;
  void gradientReady(size_t parameter, const float* values) override;

 private:
  zero::Engine& engine_;
  const std::vector<ParameterSpec>& specs_;
  pealZeroReduceType_t reduceType_;
  Tracer& tracer_;
  Compute& compute_;              // the engine's memory is where it computes
  std::vector<int64_t> entered_;  // when, per unit, for the trace
};

// What the engine is told of them beside the list.
struct Registration {
  // Fills in the first values of a parameter, given with its place in the list. Called on rank 0.
  std::function<void(const ParameterSpec&, size_t, float*)> firstValues;
  int embeddings = 0;    // the engine's group of the two embeddings
  size_t keptUnits = 0;  // so many, from unit 0 on, stay gathered from forward to backward at stage 3
};

// Registers the parameters under their places in the list and seals the engine.
void registerParameters(zero::Engine& engine, const std::vector<ParameterSpec>& specs,
                        const Registration& registration, int rank);

// FNV-1a over the values of all parameters in their order: the bf16 weights, or the fp32 masters.
// Collective; the same on all ranks.
uint64_t hashParameters(zero::Engine& engine, const std::vector<ParameterSpec>& specs,
                        pealZeroTensor_t tensor);

}  // namespace peal::train

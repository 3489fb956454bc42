#include "tools/train/engine_parameters.h"

#include <fmt/format.h>

#include "tools/common/error.h"
#include "tools/train/hash.h"
#include "tools/train/kernels.h"

namespace peal::train {
namespace {

pealZeroPass_t enginePass(Pass pass) { return pass == Pass::Forward ? pealZeroForward : pealZeroBackward; }

}  // namespace

void EngineParameters::enter(size_t unit, Pass pass) {
  if (tracer_.isOn()) {
    entered_[unit] = Tracer::nowNs();
  }
  engine_.enter(static_cast<int>(unit), enginePass(pass));
}
void EngineParameters::leave(size_t unit, Pass pass) {
  engine_.leave(static_cast<int>(unit), enginePass(pass));
  tracer_.add(TraceKind::Unit, static_cast<int64_t>(unit), static_cast<int32_t>(pass), entered_[unit]);
}

void EngineParameters::read(size_t parameter, float* values) {
  compute_.widen(engine_.weights(static_cast<int>(parameter)), values, specs_[parameter].count());
}

void EngineParameters::gradientReady(size_t parameter, const float* values) {
  const int id = static_cast<int>(parameter);
  if (reduceType_ == pealZeroReduceFp32) {
    compute_.copy(values, engine_.gradientFp32(id), specs_[parameter].count());
  } else {
    compute_.narrow(values, engine_.gradient(id), specs_[parameter].count());
  }
  engine_.gradientReady(id);
}

void registerParameters(zero::Engine& engine, const std::vector<ParameterSpec>& specs,
                        const Registration& registration, int rank) {
  std::vector<std::vector<float>> initial(specs.size());  // to be kept until the engine is sealed
  for (size_t i = 0; i < specs.size(); ++i) {
    pealZeroParameter_t parameter = zero::parameterOf(
        specs[i].name.c_str(), {specs[i].rows, specs[i].columns}, static_cast<int>(specs[i].unit));
    parameter.dims = specs[i].columns == 1 ? 1 : 2;
    parameter.group = i == kTokenEmbedding || i == kPositionEmbedding ? registration.embeddings : 0;
    parameter.decay = specs[i].decays ? pealZeroDecay : pealZeroNoDecay;
    const int id = engine.addParameter(parameter);
    if (id != static_cast<int>(i)) {
      throw tools::ToolError(fmt::format("the engine numbers parameter {} '{}' as {}", i, specs[i].name, id));
    }
    if (rank == 0) {
      initial[i].resize(specs[i].count());
      registration.firstValues(specs[i], i, initial[i].data());
      engine.setInitial(id, initial[i].data());
    }
  }
  for (size_t unit = 0; unit < registration.keptUnits; ++unit) {
    engine.keepUnit(static_cast<int>(unit));
  }
  engine.seal();
}

uint64_t hashParameters(zero::Engine& engine, const std::vector<ParameterSpec>& specs,
                        pealZeroTensor_t tensor) {
  Fnv1a hash;
  std::vector<float> values;
  std::vector<uint16_t> weights;
  for (size_t i = 0; i < specs.size(); ++i) {
    values.resize(specs[i].count());
    engine.read(static_cast<int>(i), tensor, values.data());
    if (tensor == pealZeroWeight) {
      weights.resize(values.size());
      kernels().narrow(values.data(), weights.data(), values.size());  // exact: they were bf16
      hash.add(weights.data(), weights.size() * sizeof(uint16_t));
    } else {
      hash.add(values.data(), values.size() * sizeof(float));
    }
  }
  return hash.value();
}

}  // namespace peal::train

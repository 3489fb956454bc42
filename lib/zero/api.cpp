// The C entry points of zero.h but for those of checkpoints. Everything else is the engine's and the
// planner's.
#include <fmt/format.h>

#include <string>

#include "lib/zero/entry.h"
#include "lib/zero/planner.h"
#include "peal/zero.h"

namespace peal::zero {
namespace {

// Stores a value that a Result holds.
template <class T, class U>
Result<void> store(const Result<T>& result, U* to) {
  if (!result) {
    return result.error();
  }
  *to = *result;
  return {};
}

// An address of elements.
template <class T>
Result<void> storeAs(const Result<void*>& result, T** to) {
  if (!result) {
    return result.error();
  }
  *to = static_cast<T*>(*result);
  return {};
}

// The same where the caller may pass NULL.
template <class T>
Result<void> storeIfAsked(const Result<T>& result, T* to) {
  if (to != nullptr) {
    return store(result, to);
  }
  return result ? Result<void>() : Result<void>(result.error());
}

Result<void> checkPass(pealZeroPass_t pass) {
  if (pass != pealZeroForward && pass != pealZeroBackward) {
    return Error{pealInvalidArgument,
                 fmt::format("the pass is {}, neither forward (0) nor backward (1)", static_cast<int>(pass))};
  }
  return {};
}

}  // namespace
}  // namespace peal::zero

using namespace peal::zero;  // NOLINT(google-build-using-namespace): this file is the face of that namespace
using peal::Error;
using peal::Result;

extern "C" {

pealResult_t pealZeroCreate(pealZero_t* zero, pealComm_t comm, const pealZeroOptions_t* options) {
  return guard(nullptr, __func__, [&]() -> Result<void> {
    if (zero == nullptr || comm == nullptr || options == nullptr) {
      return nullArgument(zero == nullptr ? "zero" : comm == nullptr ? "comm" : "options");
    }
    *zero = nullptr;
    Result<std::unique_ptr<Engine>> engine = Engine::make(comm, *options);
    if (!engine) {
      return engine.error();
    }
    *zero = new pealZero{std::move(*engine), {}};
    return {};
  });
}

pealResult_t pealZeroCheckOptions(const pealZeroOptions_t* options) {
  return guard(nullptr, __func__, [&]() -> Result<void> {
    return options == nullptr ? Result<void>(nullArgument("options")) : Engine::checkOptions(*options);
  });
}

pealResult_t pealZeroDestroy(pealZero_t zero) {
  if (zero != nullptr) {
    if (const Result<void> idle = zero->engine->checkNotFilling(); !idle) {
      return fail(zero, __func__, idle.error());
    }
  }
  delete zero;
  return pealSuccess;
}

const char* pealZeroGetLastError(pealZero_t zero) {
  return zero != nullptr ? zero->lastError.c_str() : threadError().c_str();
}

pealResult_t pealZeroAddGroup(pealZero_t zero, const pealZeroGroup_t* group, int* id) {
  return call(zero, __func__, group, "group",
              [&](Engine& engine) { return storeIfAsked(engine.addGroup(*group), id); });
}

pealResult_t pealZeroSetGroup(pealZero_t zero, int group, const pealZeroGroup_t* numbers) {
  return call(zero, __func__, numbers, "numbers",
              [&](Engine& engine) { return engine.setGroup(group, *numbers); });
}

pealResult_t pealZeroAddParameter(pealZero_t zero, const pealZeroParameter_t* parameter, int* id) {
  return call(zero, __func__, parameter, "parameter",
              [&](Engine& engine) { return storeIfAsked(engine.addParameter(*parameter), id); });
}

pealResult_t pealZeroKeepUnit(pealZero_t zero, int unit) {
  return call(zero, __func__, [&](Engine& engine) { return engine.keepUnit(unit); });
}

pealResult_t pealZeroSetStream(pealZero_t zero, pealStream_t stream) {
  return call(zero, __func__, [&](Engine& engine) { return engine.setStream(stream); });
}

pealResult_t pealZeroSetInitial(pealZero_t zero, int id, const float* values) {
  return call(zero, __func__, values, "values", [&](Engine& engine) {
    return engine.setInitial(id, {values, nullptr, nullptr});
  });
}

pealResult_t pealZeroSetInitialFunction(pealZero_t zero, int id, pealZeroFill_t fill, void* user) {
  if (fill == nullptr) {
    return call(zero, __func__, [](Engine&) -> Result<void> { return nullArgument("fill"); });
  }
  return call(zero, __func__, [&](Engine& engine) { return engine.setInitial(id, {nullptr, fill, user}); });
}

pealResult_t pealZeroSeal(pealZero_t zero) {
  return call(zero, __func__, [](Engine& engine) { return engine.seal(); });
}

pealResult_t pealZeroUnitEnter(pealZero_t zero, int unit, pealZeroPass_t pass) {
  return call(zero, __func__, [&](Engine& engine) -> Result<void> {
    PEAL_TRY(checkPass(pass));
    return engine.enter(unit, pass);
  });
}

pealResult_t pealZeroUnitLeave(pealZero_t zero, int unit, pealZeroPass_t pass) {
  return call(zero, __func__, [&](Engine& engine) -> Result<void> {
    PEAL_TRY(checkPass(pass));
    return engine.leave(unit, pass);
  });
}

pealResult_t pealZeroWeights(pealZero_t zero, int id, const uint16_t** weights) {
  return call(zero, __func__, weights, "weights",
              [&](Engine& engine) { return storeAs(engine.weights(id, Precision::Bf16), weights); });
}

pealResult_t pealZeroWeightsFp32(pealZero_t zero, int id, const float** weights) {
  return call(zero, __func__, weights, "weights",
              [&](Engine& engine) { return storeAs(engine.weights(id, Precision::Fp32), weights); });
}

pealResult_t pealZeroGradient(pealZero_t zero, int id, uint16_t** gradient) {
  return call(zero, __func__, gradient, "gradient",
              [&](Engine& engine) { return storeAs(engine.gradient(id, Precision::Bf16), gradient); });
}

pealResult_t pealZeroGradientFp32(pealZero_t zero, int id, float** gradient) {
  return call(zero, __func__, gradient, "gradient",
              [&](Engine& engine) { return storeAs(engine.gradient(id, Precision::Fp32), gradient); });
}

pealResult_t pealZeroGradientReady(pealZero_t zero, int id) {
  return call(zero, __func__, [&](Engine& engine) { return engine.gradientReady(id); });
}

pealResult_t pealZeroEndMicroBatch(pealZero_t zero) {
  return call(zero, __func__, [](Engine& engine) { return engine.endMicroBatch(); });
}

pealResult_t pealZeroSetNoSync(pealZero_t zero, int on) {
  return call(zero, __func__, [&](Engine& engine) { return engine.setNoSync(on != 0); });
}

pealResult_t pealZeroExpectStep(pealZero_t zero, double learningRate, uint64_t localTokens) {
  return call(zero, __func__, [&](Engine& engine) { return engine.expectStep(learningRate, localTokens); });
}

pealResult_t pealZeroGetFusedStatus(pealZero_t zero, pealZeroFusedStatus_t* status) {
  return call(zero, __func__, status, "status",
              [&](Engine& engine) { return store(engine.fusedStatus(), status); });
}

pealResult_t pealZeroStep(pealZero_t zero, double learningRate, uint64_t localTokens,
                          pealZeroReport_t* report) {
  return call(zero, __func__,
              [&](Engine& engine) { return storeIfAsked(engine.step(learningRate, localTokens), report); });
}

pealResult_t pealZeroRead(pealZero_t zero, int id, pealZeroTensor_t tensor, float* values) {
  return call(zero, __func__, values, "values", [&](Engine& engine) -> Result<void> {
    if (tensor < pealZeroMaster || tensor > pealZeroWeight) {
      return Error{pealInvalidArgument, fmt::format("there is no tensor {}", static_cast<int>(tensor))};
    }
    return engine.read(id, tensor, values);
  });
}

pealResult_t pealZeroCheckReplicas(pealZero_t zero) {
  return call(zero, __func__, [](Engine& engine) { return engine.checkReplicas(); });
}

pealResult_t pealZeroGetCounters(pealZero_t zero, pealZeroCounters_t* counters) {
  return call(zero, __func__, counters, "counters", [&](Engine& engine) -> Result<void> {
    *counters = engine.counters();
    return {};
  });
}

pealResult_t pealZeroSetTrace(pealZero_t zero, pealZeroTrace_t trace, void* user) {
  return call(zero, __func__, [&](Engine& engine) { return engine.setTrace(trace, user); });
}

pealResult_t pealZeroGetComm(pealZero_t zero, pealComm_t* comm) {
  return call(zero, __func__, comm, "comm", [&](Engine& engine) -> Result<void> {
    *comm = engine.comm();
    return {};
  });
}

pealResult_t pealZeroGetMemory(pealZero_t zero, const pealZeroArena_t** arenas, size_t* count) {
  return call(zero, __func__, arenas, "arenas", [&](Engine& engine) -> Result<void> {
    if (count == nullptr) {
      return nullArgument("count");
    }
    const Result<std::span<const pealZeroArena_t>> memory = engine.memory();
    if (!memory) {
      return memory.error();
    }
    *arenas = memory->data();
    *count = memory->size();
    return {};
  });
}

pealResult_t pealZeroParameterCount(pealZero_t zero, int* count) {
  return call(zero, __func__, count, "count", [&](Engine& engine) -> Result<void> {
    *count = static_cast<int>(engine.parameters().size());
    return {};
  });
}

pealResult_t pealZeroParameterInfo(pealZero_t zero, int id, pealZeroParameter_t* parameter,
                                   uint64_t* elements) {
  return call(zero, __func__, [&](Engine& engine) -> Result<void> {
    const Result<pealZeroParameter_t> described = engine.describe(id);
    if (described && elements != nullptr) {
      *elements = engine.parameters()[static_cast<size_t>(id)].elements;
    }
    return storeIfAsked(described, parameter);
  });
}

pealResult_t pealZeroPlan(const pealZeroPlanInput_t* input, pealZeroPlan_t* plan) {
  return guard(nullptr, __func__, [&]() -> Result<void> {
    if (input == nullptr || plan == nullptr) {
      return nullArgument(input == nullptr ? "input" : "plan");
    }
    return store(makePlan(*input), plan);
  });
}

}  // extern "C"

// The C++ face of peal/zero.h: an engine that frees itself, errors as exceptions. Header-only; every call is
// one call of the C API, whose comments hold.
//
// Inside the project only tools, benches and tests include this header, and never together with headers of
// lib/: both have a peal::zero::Engine and a peal::Error.
#ifndef PEAL_ZERO_HPP
#define PEAL_ZERO_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "peal/element.hpp"
#include "peal/zero.h"

namespace peal::zero {
// Inline, so that users write peal::zero::Engine while the linker's names cannot meet those of the library.
inline namespace face {

// A failed call: the code and the sentence.
class Failure : public peal::Error {
 public:
  using peal::Error::Error;
};

inline pealZeroOptions_t defaultOptions() { return PEAL_ZERO_OPTIONS_INITIALIZER; }
inline pealZeroPlanInput_t defaultPlanInput() { return PEAL_ZERO_PLAN_INITIALIZER; }
inline pealZeroGroup_t defaultGroup() { return PEAL_ZERO_GROUP_INITIALIZER; }

// The descriptor of a trained parameter. name is not copied. Extents after the eighth are refused by the
// engine.
inline pealZeroParameter_t parameterOf(const char* name, std::initializer_list<uint64_t> shape, int unit) {
  pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
  parameter.name = name;
  parameter.dims = static_cast<int>(shape.size());
  std::copy_n(shape.begin(), std::min<size_t>(shape.size(), PEAL_ZERO_MAX_DIMS), parameter.extents);
  parameter.unit = unit;
  return parameter;
}

inline pealZeroPlan_t plan(const pealZeroPlanInput_t& input) {
  pealZeroPlan_t result;
  if (const pealResult_t code = pealZeroPlan(&input, &result); code != pealSuccess) {
    throw Failure(code, pealZeroGetLastError(nullptr));
  }
  return result;
}

// peal::Communicator, whose header is not needed here.
template <class T>
concept OwnsCommunicator = requires(const T& owner) {
  { owner.handle() } -> std::same_as<pealComm_t>;
};

class Engine {
 public:
  Engine() = default;
  Engine(pealComm_t comm, const pealZeroOptions_t& options) {
    if (const pealResult_t code = pealZeroCreate(&zero_, comm, &options); code != pealSuccess) {
      throw Failure(code, pealZeroGetLastError(nullptr));
    }
  }
  Engine(const OwnsCommunicator auto& comm, const pealZeroOptions_t& options)
      : Engine(comm.handle(), options) {}
  ~Engine() { pealZeroDestroy(zero_); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  Engine(Engine&& other) noexcept : zero_(std::exchange(other.zero_, nullptr)) {}
  Engine& operator=(Engine&& other) noexcept {
    std::swap(zero_, other.zero_);
    return *this;
  }

  int addGroup(const pealZeroGroup_t& group) {
    int id = -1;
    check(pealZeroAddGroup(zero_, &group, &id));
    return id;
  }
  void setGroup(int group, const pealZeroGroup_t& numbers) {
    check(pealZeroSetGroup(zero_, group, &numbers));
  }
  int addParameter(const pealZeroParameter_t& parameter) {
    int id = -1;
    check(pealZeroAddParameter(zero_, &parameter, &id));
    return id;
  }
  // A trained vector of group 0.
  int addParameter(const std::string& name, uint64_t elements, int unit, pealZeroDecay_t decay) {
    pealZeroParameter_t parameter = parameterOf(name.c_str(), {elements}, unit);
    parameter.decay = decay;
    return addParameter(parameter);
  }
  void keepUnit(int unit) { check(pealZeroKeepUnit(zero_, unit)); }
  // On GPUs: the CUDA stream on which the caller computes.
  void setStream(pealStream_t stream) { check(pealZeroSetStream(zero_, stream)); }
  void setInitial(int id, const float* values) { check(pealZeroSetInitial(zero_, id, values)); }
  // Values that seal() asks for, piece by piece.
  void setInitial(int id, pealZeroFill_t fill, void* user) {
    check(pealZeroSetInitialFunction(zero_, id, fill, user));
  }
  // The parameter's elements, to be kept until seal().
  void setInitial(int id, std::span<const float> values) {
    uint64_t elements = 0;
    check(pealZeroParameterInfo(zero_, id, nullptr, &elements));
    if (values.size() != elements) {
      throw Failure(pealInvalidArgument, "setInitial: parameter " + std::to_string(id) + " has " +
                                             std::to_string(elements) + " elements, and there are " +
                                             std::to_string(values.size()) + " values");
    }
    // Of no elements: an address all the same, for there are first values.
    static constexpr float kNone = 0;
    setInitial(id, values.empty() ? &kNone : values.data());
  }
  void seal() { check(pealZeroSeal(zero_)); }

  void enter(int unit, pealZeroPass_t pass) { check(pealZeroUnitEnter(zero_, unit, pass)); }
  void leave(int unit, pealZeroPass_t pass) { check(pealZeroUnitLeave(zero_, unit, pass)); }
  const uint16_t* weights(int id) {
    const uint16_t* values = nullptr;
    check(pealZeroWeights(zero_, id, &values));
    return values;
  }
  const float* weightsFp32(int id) {
    const float* values = nullptr;
    check(pealZeroWeightsFp32(zero_, id, &values));
    return values;
  }
  uint16_t* gradient(int id) {
    uint16_t* values = nullptr;
    check(pealZeroGradient(zero_, id, &values));
    return values;
  }
  float* gradientFp32(int id) {
    float* values = nullptr;
    check(pealZeroGradientFp32(zero_, id, &values));
    return values;
  }
  void gradientReady(int id) { check(pealZeroGradientReady(zero_, id)); }
  void endMicroBatch() { check(pealZeroEndMicroBatch(zero_)); }
  void setNoSync(bool on) { check(pealZeroSetNoSync(zero_, on ? 1 : 0)); }
  void expectStep(double learningRate, uint64_t localTokens) {
    check(pealZeroExpectStep(zero_, learningRate, localTokens));
  }
  pealZeroFusedStatus_t fusedStatus() const {
    pealZeroFusedStatus_t status;
    check(pealZeroGetFusedStatus(zero_, &status));
    return status;
  }
  pealZeroReport_t step(double learningRate, uint64_t localTokens) {
    pealZeroReport_t report;
    check(pealZeroStep(zero_, learningRate, localTokens, &report));
    return report;
  }

  void read(int id, pealZeroTensor_t tensor, float* values) {
    check(pealZeroRead(zero_, id, tensor, values));
  }
  // Checkpoints. userData: rank 0's bytes.
  void save(const std::string& path, std::span<const std::byte> userData = {}) {
    check(pealZeroSave(zero_, path.c_str(), userData.data(), userData.size()));
  }
  void saveBegin(const std::string& path, std::span<const std::byte> userData = {}) {
    check(pealZeroSaveBegin(zero_, path.c_str(), userData.data(), userData.size()));
  }
  void saveWait() { check(pealZeroSaveWait(zero_)); }
  void load(const std::string& path) { check(pealZeroLoad(zero_, path.c_str())); }

  void checkReplicas() { check(pealZeroCheckReplicas(zero_)); }
  pealZeroCounters_t counters() const {
    pealZeroCounters_t counted;
    check(pealZeroGetCounters(zero_, &counted));
    return counted;
  }
  std::span<const pealZeroArena_t> memory() const {
    const pealZeroArena_t* arenas = nullptr;
    size_t count = 0;
    check(pealZeroGetMemory(zero_, &arenas, &count));
    return {arenas, count};
  }
  void setTrace(pealZeroTrace_t trace, void* user) { check(pealZeroSetTrace(zero_, trace, user)); }
  pealZero_t handle() const { return zero_; }

 private:
  void check(pealResult_t code) const {
    if (code != pealSuccess) {
      throw Failure(code, pealZeroGetLastError(zero_));
    }
  }
  pealZero_t zero_ = nullptr;
};

// A unit that is open for the scope's length.
class UnitScope {
 public:
  UnitScope(Engine& engine, int unit, pealZeroPass_t pass) : engine_(engine), unit_(unit), pass_(pass) {
    engine_.enter(unit_, pass_);
  }
  // Leaves the unit. Call it at the end: an error here must reach the caller, and a destructor cannot throw.
  void leave() {
    open_ = false;
    engine_.leave(unit_, pass_);
  }
  ~UnitScope() {
    if (open_) {
      pealZeroUnitLeave(engine_.handle(), unit_, pass_);
    }
  }
  UnitScope(const UnitScope&) = delete;
  UnitScope& operator=(const UnitScope&) = delete;

 private:
  Engine& engine_;
  int unit_;
  pealZeroPass_t pass_;
  bool open_ = true;
};

// PyTorch's no_sync(): micro-batches that begin in the scope are added up; the first one after it is its
// step's last. Outside of such scopes an engine that has seen one makes a step of each micro-batch.
class NoSync {
 public:
  explicit NoSync(Engine& engine) : engine_(engine) { engine_.setNoSync(true); }
  // In the middle of a micro-batch it cannot end; the step then says that no micro-batch was its last.
  ~NoSync() { pealZeroSetNoSync(engine_.handle(), 0); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Engine& engine_;
};

// The newest complete checkpoint in a directory; empty if there is none.
inline std::string latestCheckpoint(const std::string& directory) {
  std::string path(4096, '\0');
  if (const pealResult_t code = pealZeroLatestCheckpoint(directory.c_str(), path.data(), path.size());
      code != pealSuccess) {
    throw Failure(code, pealZeroGetLastError(nullptr));
  }
  path.resize(path.find('\0'));
  return path;
}

// A checkpoint opened for reading, without an engine.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& path) { check(pealZeroCheckpointOpen(&checkpoint_, path.c_str())); }
  ~Checkpoint() { pealZeroCheckpointClose(checkpoint_); }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  pealZeroCheckpointInfo_t info() const {
    pealZeroCheckpointInfo_t info;
    check(pealZeroCheckpointInfo(checkpoint_, &info));
    return info;
  }
  pealZeroCheckpointParameter_t parameter(uint64_t index) const {
    pealZeroCheckpointParameter_t parameter;
    check(pealZeroCheckpointParameter(checkpoint_, index, &parameter));
    return parameter;
  }
  void read(uint64_t index, pealZeroTensor_t tensor, uint64_t begin, std::span<float> values) const {
    if (!values.empty()) {
      check(pealZeroCheckpointRead(checkpoint_, index, tensor, begin, values.size(), values.data()));
    }
  }
  std::string userData() const {
    std::string data(info().userBytes, '\0');
    check(pealZeroCheckpointUserData(checkpoint_, data.data(), data.size()));
    return data;
  }

 private:
  static void check(pealResult_t code) {
    if (code != pealSuccess) {
      throw Failure(code, pealZeroGetLastError(nullptr));
    }
  }
  pealZeroCheckpoint_t checkpoint_ = nullptr;
};

}  // namespace face
}  // namespace peal::zero
#endif  // PEAL_ZERO_HPP

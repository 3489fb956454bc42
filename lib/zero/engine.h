// The engine of one rank: life cycle, the order of calls, the step. Its parts do the work: Weights, Gradients
// and Optimizer hold the arenas, Collectives communicates, Layout says where things lie.
//
// Called by api.cpp, one thread at a time. Usage errors of this rank leave the engine as it was; a failed
// collective, or ranks that disagree, break it for good.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/zero/checkpoint/save.h"
#include "lib/zero/collectives.h"
#include "lib/zero/engine_fused.h"
#include "lib/zero/gradients.h"
#include "lib/zero/model.h"
#include "lib/zero/norm.h"
#include "lib/zero/optimizer.h"
#include "lib/zero/weights.h"

namespace peal::zero {

// Where rank 0 has a parameter's first values from: an array, or a function that writes them.
struct InitialValues {
  const float* values = nullptr;
  pealZeroFill_t fill = nullptr;
  void* user = nullptr;
  bool areGiven() const { return values != nullptr || fill != nullptr; }
  void copy(uint64_t first, uint64_t count, float* to) const;
};

class Engine {
 public:
  // As far as they do not depend on the communicator.
  static Result<void> checkOptions(const pealZeroOptions_t& options);
  static Result<std::unique_ptr<Engine>> make(pealComm_t comm, const pealZeroOptions_t& options);
  // In the middle of a step, or broken: aborts, so that no rank waits for this one.
  ~Engine();

  Result<int> addGroup(const pealZeroGroup_t& group);
  Result<void> setGroup(int id, const pealZeroGroup_t& numbers);
  Result<int> addParameter(const pealZeroParameter_t& described);
  Result<void> keepUnit(int unit);
  Result<void> setStream(pealStream_t stream);
  Result<void> setInitial(int id, const InitialValues& values);
  Result<void> seal();

  Result<void> enter(int unit, pealZeroPass_t pass);
  Result<void> leave(int unit, pealZeroPass_t pass);
  Result<void*> weights(int id, Precision asked);
  Result<void*> gradient(int id, Precision asked);
  Result<void> gradientReady(int id);
  Result<void> endMicroBatch();
  Result<void> setNoSync(bool on);
  Result<void> expectStep(double learningRate, uint64_t localTokens);
  Result<pealZeroReport_t> step(double learningRate, uint64_t localTokens);
  Result<pealZeroFusedStatus_t> fusedStatus() const;

  Result<void> read(int id, pealZeroTensor_t tensor, float* values);

  // engine_checkpoint.cpp
  Result<void> beginSave(const char* path, std::span<const std::byte> user, checkpoint::SaveMode mode);
  Result<void> finishSave();
  Result<void> load(const char* path);

  Result<void> checkReplicas();
  Result<std::span<const pealZeroArena_t>> memory() const;
  pealZeroCounters_t counters() const;
  Result<void> setTrace(pealZeroTrace_t trace, void* user);
  Result<void> setBefore(BeforeOperation before, void* user) { return collectives_->setBefore(before, user); }
  // An exception ended this call. From seal() on the other ranks may have gone on without this one: it is out
  // of step, and its end tells them.
  void interrupted(const char* function, const Error& error);
  Result<void> checkNotFilling() const;  // or nothing may be called, its end least of all
  pealComm_t comm() const { return collectives_->comm(); }
  const std::vector<pealComm_t>& comms() const { return collectives_->comms(); }
  std::span<const Parameter> parameters() const { return sealed_ ? model_.layout.parameters : registered_; }
  // Its strings are the engine's.
  Result<pealZeroParameter_t> describe(int id) const;

 private:
  Engine(const pealZeroOptions_t& options, std::unique_ptr<Collectives> collectives);

  Result<void> checkUsable() const;
  Result<void> checkSealed() const;
  std::string notWhole() const;
  bool microBatchHasBegun() const;  // backward, with a gradient or a unit left
  Result<size_t> parameterIndex(int id) const;
  Result<size_t> unitIndex(int unit) const;
  Result<Group> readGroup(const pealZeroGroup_t& numbers) const;
  Result<Group> checkedGroup(int id, const pealZeroGroup_t& numbers) const;
  Result<Parameter> readDescriptor(const pealZeroParameter_t& described) const;
  Result<void> checkPlace(const pealZeroParameter_t& described, uint64_t elements) const;
  Result<size_t> trainedIndex(int id) const;  // of a parameter that has gradients
  Result<void> closeBackward(size_t unit);

  // read()
  static std::vector<size_t> partsOf(const Parameter& parameter, const Bucket& bucket);

  // seal()
  void makeModel();
  void planArenas();
  Result<void> checkComplete() const;
  Error reject(Error error);  // from now on nothing but the end
  Result<void> prepare();
  Result<void> allocate();
  Result<void> agree(const Result<void>& prepared);
  uint64_t digestOptions() const;
  uint64_t digestParameters() const;
  Result<void> broadcastInitial();
  Result<void> broadcastInitial(const Bucket& bucket, Role role);

  // Saving and loading
  class State;
  Result<void> betweenSteps(const char* what) const;
  checkpoint::State& state();

  // step()
  struct Totals {
    double squares;
    bool nonFinite;
    uint64_t tokens;
  };
  static Result<void> checkNumbers(double learningRate, uint64_t localTokens);
  Result<void> checkAnnounced(double learningRate, uint64_t localTokens) const;
  Result<Totals> addUpRanks(double learningRate, uint64_t localTokens);
  Result<void> update(double learningRate, double gradientScale);

  // engine_rebuild.cpp
  Result<void> rebuildBuckets();
  enum class PlaneOf : uint8_t { Masters, Moments };
  Result<void> movePlane(const Plane& plane, PlaneOf of, const Layout& next);
  Result<void> moveWeights(const Layout& next);
  Result<void> moveWeights(const Plane& plane, Precision precision, const Layout& next);
  Result<void> moving(const Result<void>& moved);
  template <class Move>
  Result<void> forEachMove(const Bucket& bucket, const Layout& next, uint64_t begin, uint64_t end, Move move);

  pealZeroOptions_t options_;
  std::vector<Group> groups_;
  std::vector<Parameter> registered_;
  std::vector<bool> kept_;              // per unit
  std::vector<InitialValues> initial_;  // per parameter, until seal
  std::vector<float> staging_;          // of the first values, in seal
  bool isSealing_ = false;              // or was once: the ranks have something in common
  bool isFilling_ = false;              // the caller's function writes first values
  bool sealed_ = false;
  std::vector<bool> closed_;       // per unit: its gradients of this micro-batch are complete
  std::optional<Error> rejected_;  // the ranks disagree

  // Destroyed in reverse: communication ends before the memory that it uses goes.
  Model model_;
  Weights weights_;
  Gradients gradients_;
  Optimizer optimizer_;
  FusedStep fused_;
  ArenaList memory_;
  std::array<int64_t, kControlWords> control_{};  // of the step's small all-reduce
  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<checkpoint::State> state_;
  std::unique_ptr<checkpoint::Save> save_;  // in flight

  uint64_t updates_ = 0;
  uint64_t steps_ = 0;
  double communicationBefore_ = 0, waitBefore_ = 0;  // at the end of the last step
};

}  // namespace peal::zero

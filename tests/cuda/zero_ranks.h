// A ZeRO engine driven through the C API on a small model whose gradients a formula gives, on host memory or
// on a simulated GPU. On a GPU nothing of a micro-batch waits: weights are copied out, gradients computed by
// a host function and copied in, all in the caller's stream, so that only the engine's events keep the order.
#pragma once
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "lib/reduce/adamw.h"
#include "peal/zero.h"
#include "tests/cuda/gpu_ranks.h"
#include "tests/zero/before.h"

namespace peal::test {

struct ZeroParameter {
  uint64_t elements;
  int unit;
  bool decays = true;
  int group = 0;
  bool frozen = false;
  int dtype = -1;  // the engine's
};

struct ZeroSetup {
  pealZeroOptions_t options = PEAL_ZERO_OPTIONS_INITIALIZER;
  std::vector<ZeroParameter> parameters{{37, 0},          {5, 0, false},     {64, 1}, {0, 1},
                                        {1, 1, false},    {129, 2},          {13, 2}, {40, 2, true, 0, true},
                                        {7, 2, false, 1}, {200, 3, true, 1}, {31, 3}};
  int steps = 3;
  bool announces = false;  // the step before the last backward pass: pealZeroExpectStep
  // The number of a step's micro-batches where pealZeroSetNoSync says so; may be empty.
  std::function<int(uint64_t step)> microBatchesOf{};
  // The order in which gradients are handed over inside a unit; false: the reverse of registration.
  bool inOrderOfRegistration = false;
  int withheld = -1;   // a parameter without a gradient
  int nonFinite = -1;  // the step in which one gradient is infinite
  // What a rank's stream sleeps before it writes the gradient of a unit's first parameter.
  std::function<std::chrono::milliseconds(int rank, int unit)> delay{};
  // Called before each of the engine's operations, where it runs.
  std::function<void(int rank, zero::test::Kind kind)> before{};
  // Called after each step, on each rank.
  std::function<void(pealZero_t zero, int step)> between{};
};

struct ZeroOutcome {
  std::vector<float> master, moment1, moment2, weight;
  std::vector<double> norms;
  std::vector<int> skipped;
  std::vector<uint64_t> fused;  // buckets of each step: not compared

  void expectEqual(const ZeroOutcome& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
    };
    EXPECT_TRUE(same(master, other.master));
    EXPECT_TRUE(same(moment1, other.moment1));
    EXPECT_TRUE(same(moment2, other.moment2));
    EXPECT_TRUE(same(weight, other.weight));
    EXPECT_TRUE(same(norms, other.norms));
    EXPECT_EQ(skipped, other.skipped);
  }
};

#define PEAL_ZERO_OK(zero, call) ASSERT_EQ((call), pealSuccess) << pealZeroGetLastError(zero)

class ZeroRank {
 public:
  // device: as the simulator's tests count them; below zero: host memory.
  ZeroRank(pealComm_t comm, int device, int rank, ZeroSetup setup)
      : setup_(std::move(setup)), rank_(rank), device_(device) {
    if (device >= 0) {
      stream_ = std::make_unique<GpuStream>(device);
    }
    make(comm);
  }
  ZeroRank(const ZeroRank&) = delete;
  ZeroRank& operator=(const ZeroRank&) = delete;
  ~ZeroRank() {
    if (stream_) {
      stream_->synchronize();
    }
    EXPECT_EQ(pealZeroDestroy(zero_), pealSuccess);
    for (const std::unique_ptr<Task>& task : tasks_) {
      if (device_ >= 0) {
        cudaOk(cudaFreeHost(task->values), "cudaFreeHost");
      }
    }
  }

  pealZero_t zero() const { return zero_; }
  void step() {
    const uint64_t tokens = 16 + 5 * static_cast<uint64_t>(rank_);
    const int last =
        (setup_.microBatchesOf ? setup_.microBatchesOf(steps_) : setup_.options.microBatches) - 1;
    for (int microBatch = 0; microBatch <= last; ++microBatch) {
      if (setup_.microBatchesOf) {
        PEAL_ZERO_OK(zero_, pealZeroSetNoSync(zero_, microBatch < last ? 1 : 0));
      }
      forward();
      if (setup_.announces && microBatch == last) {
        PEAL_ZERO_OK(zero_, pealZeroExpectStep(zero_, kRate, tokens));
      }
      backward(microBatch);
      PEAL_ZERO_OK(zero_, pealZeroEndMicroBatch(zero_));
    }
    pealZeroReport_t report{};
    PEAL_ZERO_OK(zero_, pealZeroStep(zero_, kRate, tokens, &report));
    ++steps_;
    outcome_.norms.push_back(report.skipped != 0 ? -1 : report.gradientNorm);
    outcome_.skipped.push_back(report.skipped);
    outcome_.fused.push_back(report.fusedBuckets);
  }
  ZeroOutcome outcome() {
    ZeroOutcome read = outcome_;
    const std::pair<pealZeroTensor_t, std::vector<float>*> tensors[] = {{pealZeroMaster, &read.master},
                                                                        {pealZeroMoment1, &read.moment1},
                                                                        {pealZeroMoment2, &read.moment2},
                                                                        {pealZeroWeight, &read.weight}};
    for (const auto& [tensor, values] : tensors) {
      for (size_t id = 0; id < setup_.parameters.size(); ++id) {
        if (setup_.parameters[id].frozen && tensor != pealZeroWeight) {
          continue;
        }
        std::vector<float> part(setup_.parameters[id].elements + 1);
        EXPECT_EQ(pealZeroRead(zero_, static_cast<int>(id), tensor, part.data()), pealSuccess)
            << pealZeroGetLastError(zero_);
        values->insert(values->end(), part.begin(), part.end() - 1);
      }
    }
    return read;
  }

 private:
  static constexpr double kRate = 1e-2;
  bool hasWideGradients() const { return setup_.options.reduceType == pealZeroReduceFp32; }
  bool hasWideWeights(int id) const {
    const int dtype = setup_.parameters[static_cast<size_t>(id)].dtype;
    return dtype < 0 ? setup_.options.master == pealZeroMasterIsWeight : dtype == pealFloat32;
  }

  // A gradient to be made of the weights, in their place; there is room for either.
  struct Task {
    void* values;
    bool wideWeights, wideGradient;
    uint64_t elements;
    size_t parameter;
    int rank, microBatch;
    uint64_t step;
    bool isInfinite;
    std::chrono::milliseconds sleep;
  };
  static void computeGradient(void* argument) {
    const auto& task = *static_cast<const Task*>(argument);
    if (task.sleep.count() > 0) {
      std::this_thread::sleep_for(task.sleep);
    }
    if (task.elements == 0) {
      return;
    }
    std::vector<float> made(task.elements);
    if (task.wideWeights) {
      std::memcpy(made.data(), task.values, task.elements * sizeof(float));
    } else {
      std::transform(static_cast<const uint16_t*>(task.values),
                     static_cast<const uint16_t*>(task.values) + task.elements, made.begin(), fromBf16);
    }
    for (uint64_t i = 0; i < task.elements; ++i) {
      const uint64_t place = i * 31 + task.parameter * 17 + static_cast<uint64_t>(task.rank) * 7 +
                             task.step * 3 + static_cast<uint64_t>(task.microBatch) * 11;
      const float target = (static_cast<float>(place % 97) - 48.0F) * 0.021F;
      made[i] = (made[i] - target) * (1 + static_cast<float>(task.rank) * 0.37F);
    }
    if (task.isInfinite) {
      made[0] = std::numeric_limits<float>::infinity();
    }
    if (task.wideGradient) {
      std::memcpy(task.values, made.data(), task.elements * sizeof(float));
    } else {
      std::transform(made.begin(), made.end(), static_cast<uint16_t*>(task.values), toBf16);
    }
  }

  void make(pealComm_t comm) {
    ASSERT_EQ(pealZeroCreate(&zero_, comm, &setup_.options), pealSuccess) << pealZeroGetLastError(nullptr);
    if (stream_) {
      PEAL_ZERO_OK(zero_, pealZeroSetStream(zero_, stream_->peal()));
    }
    pealZeroGroup_t group = PEAL_ZERO_GROUP_INITIALIZER;
    group.learningRateFactor = 0.5;
    group.beta1 = 0.8;
    group.weightDecay = 0.3;
    PEAL_ZERO_OK(zero_, pealZeroAddGroup(zero_, &group, nullptr));
    std::vector<std::vector<float>> first;
    for (size_t id = 0; id < setup_.parameters.size(); ++id) {
      const ZeroParameter& described = setup_.parameters[id];
      const std::string name = fmt::format("p{}", id);
      pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
      parameter.name = name.c_str();
      parameter.dims = 1;
      parameter.extents[0] = described.elements;
      parameter.unit = described.unit;
      parameter.group = described.group;
      parameter.decay = described.decays ? pealZeroDecay : pealZeroNoDecay;
      parameter.frozen = described.frozen ? 1 : 0;
      parameter.dtype = described.dtype;
      PEAL_ZERO_OK(zero_, pealZeroAddParameter(zero_, &parameter, nullptr));
      first.emplace_back(described.elements + 1);
      for (uint64_t i = 0; i < described.elements; ++i) {
        const uint64_t mixed = (i * 2654435761U + id * 40503U) % 1021;
        first.back()[i] = rank_ == 0 ? (static_cast<float>(mixed) - 510.0F) * 3.1e-4F : 99.0F;
      }
      PEAL_ZERO_OK(zero_, pealZeroSetInitial(zero_, static_cast<int>(id), first.back().data()));
      units_ = std::max(units_, described.unit + 1);
    }
    PEAL_ZERO_OK(zero_, pealZeroSeal(zero_));
  }

  // Unit 0 stays open around the others.
  void forward() {
    PEAL_ZERO_OK(zero_, pealZeroUnitEnter(zero_, 0, pealZeroForward));
    for (int unit = 1; unit < units_; ++unit) {
      PEAL_ZERO_OK(zero_, pealZeroUnitEnter(zero_, unit, pealZeroForward));
      PEAL_ZERO_OK(zero_, pealZeroUnitLeave(zero_, unit, pealZeroForward));
    }
    PEAL_ZERO_OK(zero_, pealZeroUnitLeave(zero_, 0, pealZeroForward));
  }

  void backward(int microBatch) {
    PEAL_ZERO_OK(zero_, pealZeroUnitEnter(zero_, 0, pealZeroBackward));
    for (int unit = units_ - 1; unit >= 0; --unit) {
      if (unit > 0) {
        PEAL_ZERO_OK(zero_, pealZeroUnitEnter(zero_, unit, pealZeroBackward));
      }
      bool isFirst = true;
      const size_t all = setup_.parameters.size();
      for (size_t i = 0; i < all; ++i) {
        const size_t id = setup_.inOrderOfRegistration ? i : all - 1 - i;
        const ZeroParameter& parameter = setup_.parameters[id];
        if (parameter.unit == unit && !parameter.frozen && static_cast<int>(id) != setup_.withheld) {
          handOver(id, microBatch, std::exchange(isFirst, false));
        }
      }
      PEAL_ZERO_OK(zero_, pealZeroUnitLeave(zero_, unit, pealZeroBackward));
    }
  }

  void memory(int id, const void*& weights, void*& gradient) {
    if (hasWideWeights(id)) {
      const float* wide = nullptr;
      PEAL_ZERO_OK(zero_, pealZeroWeightsFp32(zero_, id, &wide));
      weights = wide;
    } else {
      const uint16_t* rounded = nullptr;
      PEAL_ZERO_OK(zero_, pealZeroWeights(zero_, id, &rounded));
      weights = rounded;
    }
    if (hasWideGradients()) {
      float* wide = nullptr;
      PEAL_ZERO_OK(zero_, pealZeroGradientFp32(zero_, id, &wide));
      gradient = wide;
    } else {
      uint16_t* rounded = nullptr;
      PEAL_ZERO_OK(zero_, pealZeroGradient(zero_, id, &rounded));
      gradient = rounded;
    }
  }

  void handOver(size_t id, int microBatch, bool isFirst) {
    const ZeroParameter& parameter = setup_.parameters[id];
    const void* weights = nullptr;
    void* gradient = nullptr;
    memory(static_cast<int>(id), weights, gradient);
    const bool isWide = hasWideWeights(static_cast<int>(id));
    const size_t weightBytes = parameter.elements * (isWide ? 4 : 2);
    const size_t bytes = parameter.elements * (hasWideGradients() ? 4 : 2);
    const size_t room = std::max(weightBytes, bytes) + 1;
    auto task = std::make_unique<Task>(
        Task{nullptr, isWide, hasWideGradients(), parameter.elements, id, rank_, microBatch, steps_,
             static_cast<int>(steps_) == setup_.nonFinite && id == 2 && rank_ == 0,
             isFirst && setup_.delay ? setup_.delay(rank_, parameter.unit) : std::chrono::milliseconds(0)});
    if (device_ < 0) {
      std::vector<std::byte> values(room);
      task->values = values.data();
      std::memcpy(task->values, weights, weightBytes);
      computeGradient(task.get());
      std::memcpy(gradient, task->values, bytes);
    } else {
      CUDA_OK(cudaSetDevice(cudasim::deviceOf(device_)));
      CUDA_OK(cudaMallocHost(&task->values, room));
      CUDA_OK(cudaMemcpyAsync(task->values, weights, weightBytes, cudaMemcpyDeviceToHost, stream_->get()));
      CUDA_OK(cudaLaunchHostFunc(stream_->get(), computeGradient, task.get()));
      CUDA_OK(cudaMemcpyAsync(gradient, task->values, bytes, cudaMemcpyHostToDevice, stream_->get()));
      tasks_.push_back(std::move(task));
    }
    PEAL_ZERO_OK(zero_, pealZeroGradientReady(zero_, static_cast<int>(id)));
  }

  const ZeroSetup setup_;
  const int rank_, device_;
  int units_ = 0;
  uint64_t steps_ = 0;
  std::unique_ptr<GpuStream> stream_;
  pealZero_t zero_ = nullptr;
  ZeroOutcome outcome_;
  std::vector<std::unique_ptr<Task>> tasks_;  // what the stream may still look at
};

// Trains on these devices and gives what each rank has read. after: called with every rank's engine, trained.
inline std::vector<ZeroOutcome> trainOn(const std::vector<int>& devices, const ZeroSetup& setup,
                                        const std::function<void(ZeroRank&, int rank)>& after = {}) {
  const std::vector<pealComm_t> comms = initAll(devices);
  std::vector<ZeroOutcome> outcomes(devices.size());
  onThreads(static_cast<int>(devices.size()), [&](int rank) {
    const auto own = static_cast<size_t>(rank);
    ZeroRank trained(comms[own], devices[own], rank, setup);
    {
      const auto call = [&](zero::test::Kind kind) { setup.before(rank, kind); };
      std::unique_ptr<zero::test::Before> before;
      if (setup.before) {
        before = std::make_unique<zero::test::Before>(trained.zero(), call);
      }
      for (int step = 0; step < setup.steps; ++step) {
        trained.step();
        if (setup.between) {
          setup.between(trained.zero(), step);
        }
      }
    }
    if (after) {
      after(trained, rank);
    }
    outcomes[own] = trained.outcome();
  });
  destroyAll(comms);
  return outcomes;
}

inline ZeroSetup setupOf(int stage, size_t bucketBytes, int microBatches = 1) {
  ZeroSetup setup;
  setup.options.stage = stage;
  setup.options.bucketBytes = bucketBytes;
  setup.options.microBatches = microBatches;
  setup.options.clipNorm = 0.5;
  setup.options.weightDecay = 0.1;
  return setup;
}

inline std::vector<int> hostRanks(size_t ranks) { return std::vector<int>(ranks, PEAL_DEVICE_HOST); }

inline void expectHostsBits(const std::vector<int>& devices, const ZeroSetup& setup) {
  SCOPED_TRACE(testing::Message() << devices.size() << " ranks, stage " << setup.options.stage
                                  << ", buckets of " << setup.options.bucketBytes << " bytes, "
                                  << setup.options.microBatches << " micro-batches");
  const ZeroOutcome expected = trainOn(hostRanks(devices.size()), setup).front();
  EXPECT_NE(expected.weight, std::vector<float>(expected.weight.size()));
  for (const ZeroOutcome& outcome : trainOn(devices, setup)) {
    outcome.expectEqual(expected);
  }
}

inline const std::vector<std::vector<int>> kDevices{{0}, {0, 1}, {0, 1, 1}, {0, 1, 2, 3}};

// Both types in most units, and a unit of fp32 alone.
inline std::vector<ZeroParameter> mixedTypes() {
  std::vector<ZeroParameter> parameters = ZeroSetup{}.parameters;
  for (const size_t wide : {1, 3, 6, 7, 9, 10}) {
    parameters[wide].dtype = pealFloat32;
  }
  return parameters;
}

}  // namespace peal::test

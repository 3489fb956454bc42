#include "tests/zero/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace peal::zero::test {

float widen(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

uint16_t roundToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void onRanks(int ranks, const std::function<void(int rank, pealComm_t comm)>& body) {
  std::vector<pealComm_t> comms(static_cast<size_t>(ranks), nullptr);
  if (pealCommInitAll(comms.data(), ranks, nullptr) != pealSuccess) {
    throw std::runtime_error(pealGetLastError(nullptr));
  }
  std::mutex mutex;  // guards failure
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      pealComm_t comm = comms[static_cast<size_t>(rank)];
      try {
        body(rank, comm);
        pealCommDestroy(comm);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!failure) {
          failure = std::current_exception();
        }
        pealCommAbort(comm);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

Shape unevenShape() {
  return {{37, 0}, {5, 0, pealZeroNoDecay}, {64, 1},  {0, 1},  {1, 1, pealZeroNoDecay}, {129, 2},
          {13, 2}, {7, 2, pealZeroNoDecay}, {200, 3}, {31, 4}, {2, 4, pealZeroNoDecay}};
}

float initialValue(size_t parameter, uint64_t element) {
  const uint64_t mixed = (element * 2654435761u + parameter * 40503u) % 1021;
  return (static_cast<float>(mixed) - 510.0f) * 3.1e-4f;
}

float syntheticValue(size_t parameter, uint64_t element, int rank, uint64_t step, int microBatch,
                     float weight) {
  const uint64_t place = element * 31 + parameter * 17 + static_cast<uint64_t>(rank) * 7 + step * 3 +
                         static_cast<uint64_t>(microBatch) * 11;
  const float target = (static_cast<float>(place % 97) - 48.0f) * 0.021f;
  return (weight - target) * (1.0f + static_cast<float>(rank) * 0.37f);
}

uint16_t syntheticGradient(size_t parameter, uint64_t element, int rank, uint64_t step, int microBatch,
                           uint16_t weight) {
  return roundToBf16(syntheticValue(parameter, element, rank, step, microBatch, widen(weight)));
}

Trainer::Trainer(pealComm_t comm, int rank, const pealZeroOptions_t& options, const Shape& shape,
                 const std::vector<int>& keptUnits, const std::vector<pealZeroGroup_t>& groups)
    : rank_(rank),
      microBatches_(options.microBatches),
      isFp32_(options.reduceType == pealZeroReduceFp32),
      hasFp32Weights_(options.master == pealZeroMasterIsWeight),
      shape_(shape),
      units_(1 + std::max_element(shape.begin(), shape.end(),
                                  [](const auto& a, const auto& b) { return a.unit < b.unit; })
                     ->unit),
      engine_(comm, options) {
  for (const pealZeroGroup_t& group : groups) {
    engine_.addGroup(group);
  }
  std::vector<std::vector<float>> initial;
  for (size_t p = 0; p < shape_.size(); ++p) {
    const std::string name = fmt::format("p{}", p);
    const std::string named = fmt::format("p{}", shape_[p].tiedTo);
    pealZeroParameter_t parameter = parameterOf(name.c_str(), {shape_[p].elements}, shape_[p].unit);
    parameter.decay = shape_[p].decay;
    parameter.group = shape_[p].group;
    parameter.frozen = shape_[p].frozen ? 1 : 0;
    parameter.tiedTo = shape_[p].tiedTo >= 0 ? named.c_str() : nullptr;
    parameter.dtype = shape_[p].dtype;
    const int id = engine_.addParameter(parameter);
    if (shape_[p].tiedTo >= 0) {
      continue;
    }
    std::vector<float> values(shape_[p].elements + 1);  // one more: an empty vector has no address
    for (uint64_t i = 0; i < shape_[p].elements; ++i) {
      // Other ranks have other values, which must not matter.
      values[i] = rank == 0 ? initialValue(p, i) : 99.0f;
    }
    initial.push_back(std::move(values));
    engine_.setInitial(id, initial.back().data());
  }
  for (const int unit : keptUnits) {
    engine_.keepUnit(unit);
  }
  engine_.seal();
}

uint64_t Trainer::elements() const {
  uint64_t total = 0;
  for (const ModelParameter& parameter : shape_) {
    total += parameter.trains() ? parameter.elements : 0;
  }
  return total;
}

// Unit 0 stays open around the others, as the unit of a tied embedding does.
void Trainer::forward() {
  engine_.enter(0, pealZeroForward);
  for (int unit = 1; unit < units_; ++unit) {
    UnitScope scope(engine_, unit, pealZeroForward);
    scope.leave();
  }
  engine_.leave(0, pealZeroForward);
}

void Trainer::backward(int microBatch) {
  engine_.enter(0, pealZeroBackward);
  for (int unit = units_ - 1; unit >= 0; --unit) {
    if (unit > 0) {
      engine_.enter(unit, pealZeroBackward);
    }
    for (size_t p = shape_.size(); p-- > 0;) {
      const bool isWithheld = std::find(withheld.begin(), withheld.end(), p) != withheld.end();
      if (shape_[p].unit != unit || isWithheld || !shape_[p].trains()) {
        continue;
      }
      handOver(p, microBatch);
    }
    engine_.leave(unit, pealZeroBackward);
  }
}

void Trainer::backwardInOrder(int microBatch) {
  for (int unit = 0; unit < units_; ++unit) {
    engine_.enter(unit, pealZeroBackward);
  }
  for (const size_t p : order) {
    handOver(p, microBatch);
  }
  for (int unit = 0; unit < units_; ++unit) {
    engine_.leave(unit, pealZeroBackward);
  }
}

void Trainer::handOver(size_t p, int microBatch) {
  writeGradient(p, microBatch);
  engine_.gradientReady(static_cast<int>(p));
  if (handedOver) {
    handedOver(p);
  }
}

void Trainer::writeGradient(size_t p, int microBatch) {
  const int id = static_cast<int>(p);
  const bool isWide = shape_[p].dtype < 0 ? hasFp32Weights_ : shape_[p].dtype == pealFloat32;
  const float* wide = isWide ? engine_.weightsFp32(id) : nullptr;
  const uint16_t* narrow = isWide ? nullptr : engine_.weights(id);
  const auto value = [&](uint64_t i) {
    const float weight = wide != nullptr ? wide[i] : widen(narrow[i]);
    return syntheticValue(p, i, rank_, steps_, microBatch, weight);
  };
  if (isFp32_) {
    float* gradient = engine_.gradientFp32(id);
    for (uint64_t i = 0; i < shape_[p].elements; ++i) {
      gradient[i] = value(i);
    }
    if (tamperFp32) {
      tamperFp32(p, microBatch, gradient);
    }
    return;
  }
  uint16_t* gradient = engine_.gradient(id);
  for (uint64_t i = 0; i < shape_[p].elements; ++i) {
    gradient[i] = roundToBf16(value(i));
  }
  if (tamper) {
    tamper(p, microBatch, gradient);
  }
}

pealZeroReport_t Trainer::step(double learningRate) {
  const int last = (microBatchesOf ? microBatchesOf(steps_) : microBatches_) - 1;
  const auto allButLast = [&] {
    for (int microBatch = 0; microBatch < last; ++microBatch) {
      runMicroBatch(microBatch, false, learningRate);
    }
  };
  if (microBatchesOf) {
    const NoSync scope(engine_);
    allButLast();
  } else {
    allButLast();
  }
  runMicroBatch(last, announces, learningRate);
  ++steps_;
  return engine_.step(learningRate, tokens(rank_));
}

void Trainer::runMicroBatch(int microBatch, bool announced, double learningRate) {
  forward();
  if (announced) {
    engine_.expectStep(learningRate, tokens(rank_));
  }
  order.empty() ? backward(microBatch) : backwardInOrder(microBatch);
  engine_.endMicroBatch();
}

std::vector<float> Trainer::read(pealZeroTensor_t tensor) {
  std::vector<float> all;
  for (size_t p = 0; p < shape_.size(); ++p) {
    if (shape_[p].trains() || (shape_[p].frozen && tensor == pealZeroWeight)) {
      std::vector<float> values(shape_[p].elements + 1);  // one more: an empty vector has no address
      engine_.read(static_cast<int>(p), tensor, values.data());
      all.insert(all.end(), values.begin(), values.end() - 1);
    }
  }
  return all;
}

}  // namespace peal::zero::test

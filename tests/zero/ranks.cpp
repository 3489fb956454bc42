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

uint16_t syntheticGradient(size_t parameter, uint64_t element, int rank, uint64_t step, int microBatch,
                           uint16_t weight) {
  const uint64_t place = element * 31 + parameter * 17 + static_cast<uint64_t>(rank) * 7 + step * 3 +
                         static_cast<uint64_t>(microBatch) * 11;
  const float target = (static_cast<float>(place % 97) - 48.0f) * 0.021f;
  return roundToBf16((widen(weight) - target) * (1.0f + static_cast<float>(rank) * 0.37f));
}

Trainer::Trainer(pealComm_t comm, int rank, const pealZeroOptions_t& options, const Shape& shape,
                 const std::vector<int>& keptUnits)
    : rank_(rank),
      microBatches_(options.microBatches),
      shape_(shape),
      units_(shape.back().unit + 1),
      engine_(comm, options) {
  std::vector<std::vector<float>> initial;
  for (size_t p = 0; p < shape_.size(); ++p) {
    const int id =
        engine_.addParameter(fmt::format("p{}", p), shape_[p].elements, shape_[p].unit, shape_[p].decay);
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
    total += parameter.elements;
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
      if (shape_[p].unit != unit || isWithheld) {
        continue;
      }
      const int id = static_cast<int>(p);
      const uint16_t* weights = engine_.weights(id);
      uint16_t* gradient = engine_.gradient(id);
      for (uint64_t i = 0; i < shape_[p].elements; ++i) {
        gradient[i] = syntheticGradient(p, i, rank_, steps_, microBatch, weights[i]);
      }
      if (tamper) {
        tamper(p, microBatch, gradient);
      }
      engine_.gradientReady(id);
    }
    engine_.leave(unit, pealZeroBackward);
  }
}

pealZeroReport_t Trainer::step(double learningRate) {
  for (int microBatch = 0; microBatch < microBatches_; ++microBatch) {
    forward();
    backward(microBatch);
    engine_.endMicroBatch();
  }
  ++steps_;
  return engine_.step(learningRate, tokens(rank_));
}

std::vector<float> Trainer::read(pealZeroTensor_t tensor) {
  std::vector<float> all(elements() + 1);
  uint64_t begin = 0;
  for (size_t p = 0; p < shape_.size(); ++p) {
    engine_.read(static_cast<int>(p), tensor, all.data() + begin);
    begin += shape_[p].elements;
  }
  all.pop_back();
  return all;
}

}  // namespace peal::zero::test

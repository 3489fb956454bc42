#include "tests/zero/before.h"

#include <stdexcept>
#include <utility>

#include "lib/zero/entry.h"
#include "transports/ucx/ucx.h"

namespace peal::zero::test {

static_assert(kKinds == kOperations);
static_assert(static_cast<int>(Kind::AllReduce) == static_cast<int>(Operation::AllReduce));
static_assert(static_cast<int>(Kind::ReduceScatter) == static_cast<int>(Operation::ReduceScatter));
static_assert(static_cast<int>(Kind::Gather) == static_cast<int>(Operation::Gather));
static_assert(static_cast<int>(Kind::Replicas) == static_cast<int>(Operation::Replicas));
static_assert(static_cast<int>(Kind::Control) == static_cast<int>(Operation::Control));
static_assert(static_cast<int>(Kind::Other) == static_cast<int>(Operation::Other));
static_assert(static_cast<int>(Kind::Sum) == static_cast<int>(Operation::Sum));
static_assert(static_cast<int>(Kind::Update) == static_cast<int>(Operation::Update));
static_assert(static_cast<int>(Kind::Fused) == static_cast<int>(Operation::Fused));

const char* nameOf(Kind kind) {
  constexpr std::array<const char*, kKinds> names{
      "all-reduce", "reduce-scatter", "gather", "replicas", "control", "other", "sum", "update", "fused"};
  return names[static_cast<size_t>(kind)];
}

Before::Before(pealZero_t zero, std::function<void(Kind)> call) : zero_(zero), call_(std::move(call)) {
  const auto forward = [](void* user, Operation operation) {
    static_cast<Before*>(user)->call_(static_cast<Kind>(operation));
  };
  if (Result<void> set = zero_->engine->setBefore(forward, this); !set) {
    throw std::runtime_error(set.error().message);
  }
}

Before::~Before() {
  // Fails if communication did, which the test has seen.
  (void)zero_->engine->setBefore(nullptr, nullptr);
}

std::string whyNoUcx() {
  const UcxSupport support = probeUcx();
  return support.available ? "" : support.reason;
}

void finishQueued(pealZero_t zero) {
  if (Result<void> finished = zero->engine->setBefore(nullptr, nullptr); !finished) {
    throw std::runtime_error(finished.error().message);
  }
}

pealCommStats_t sentByLinks(pealZero_t zero) {
  finishQueued(zero);
  pealCommStats_t sum{};
  for (const pealComm_t comm : zero->engine->comms()) {
    pealCommStats_t one{};
    if (pealCommGetStats(comm, &one) != pealSuccess) {
      throw std::runtime_error(pealGetLastError(comm));
    }
    for (int stat = 0; stat < pealNumStats; ++stat) {
      sum.calls[stat] += one.calls[stat];
      sum.bytesSent[stat] += one.bytesSent[stat];
    }
  }
  return sum;
}

}  // namespace peal::zero::test

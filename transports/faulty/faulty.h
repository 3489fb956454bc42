// A network that misbehaves by plan: wraps any fabric and delays what arrives, refuses credit for a while,
// lets a link fail, or ends the process, each at a moment that a seed decides. What it does is within the
// contract of Link unless it says otherwise, so whoever sits above must still give right results, or the
// right error.
//
// For tests: it is in no library. Every delay is counted in calls of poll(), never in time, so that a plan
// repeats.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "transports/fabric.h"

namespace peal {

struct FaultPlan {
  uint64_t seed = 1;
  // Each message is shown, and each credit seen, up to so many polls late. Links are late independently of
  // each other, so that completions of different links change places.
  uint32_t latePollsMost = 0;
  // After so many grants of credit one is refused, for so many polls; 0: never.
  uint32_t refuseEvery = 0;
  uint32_t refusePolls = 0;
  // With the n-th message that this rank posts: the link that it goes over fails, and this message and later
  // ones are lost; or this process is killed.
  std::optional<uint64_t> dropAtMessage = std::nullopt;
  std::optional<uint64_t> dieAtMessage = std::nullopt;
  // The n-th message that this rank posts never leaves, and nobody is told; later ones do. No link may do
  // that, so it must become an error.
  std::optional<uint64_t> loseAtMessage = std::nullopt;
  // The n-th message that this rank posts, or the first after it for whose double there is room, goes out
  // twice. No link may do that, so it must become an error.
  std::optional<uint64_t> duplicateAtMessage = std::nullopt;
};

std::unique_ptr<Fabric> makeFaulty(std::unique_ptr<Fabric> inner, const FaultPlan& plan);

}  // namespace peal

// What the tests of the verbs fabric over the fake library have in common: options that lose no time, and
// ranks with devices.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/transports/verbs/fake.h"
#include "tests/transports/verbs/ranks.h"

namespace peal::test {

inline verbs::Options options(size_t slotBytes = 1024, int slots = 4) {
  verbs::Options made;
  made.fabric = {slotBytes, slots};
  made.pingLimitMs = 1000;
  made.firstPauseMs = 5;
  made.longestPauseMs = 100;
  return made;
}

// Ranks over one World, each with the same devices at addresses of its own.
struct Machines {
  Machines(World& world, int size, const std::vector<std::string>& names) {
    for (int rank = 0; rank < size; ++rank) {
      std::vector<FakeDeviceSpec> devices;
      for (size_t i = 0; i < names.size(); ++i) {
        devices.push_back(
            roceDevice(fmt::format("{}-{}", names[i], rank), fmt::format("10.0.{}.{}", i, rank + 1)));
      }
      libraries.push_back(std::make_unique<FakeVerbs>(world, rank, devices));
    }
  }
  OpenFabric open(const verbs::Options& chosen) {
    return [this, chosen](int rank) {
      return verbs::VerbsFabric::open(*libraries[static_cast<size_t>(rank)], chosen);
    };
  }
  std::vector<std::unique_ptr<FakeVerbs>> libraries;
};

inline void expectClean(const World& world) {
  EXPECT_EQ(world.alive(), 0) << "objects of libibverbs were left behind";
  EXPECT_EQ(world.violations(), 0);
}

}  // namespace peal::test

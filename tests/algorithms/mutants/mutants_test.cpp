// The checker must find every defect that mutate.py seeds into copies of the algorithms, and none in copies
// that were left alone. Prints which check found what.
#include "tests/algorithms/mutants/mutants.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "algorithms/record/checker.h"
#include "tests/algorithms/shapes.h"

namespace peal::test {
using namespace record;

namespace {

struct Findings {
  size_t checks = 0;  // calls of check()
  size_t faulty = 0;  // ... that found something
  std::array<size_t, kCheckCount> byCheck{};
  std::string first;
};

void examineOne(const Mutant& mutant, const Operation& operation, const AlgorithmTraits& promised,
                Plays amount, Findings& findings) {
  const auto faults = check(mutant.algorithm, operation, mutant.run,
                            plays(promised, operation.ranks, amount, findings.checks + 1));
  ++findings.checks;
  findings.faulty += faults.empty() ? 0 : 1;
  if (findings.first.empty() && !faults.empty()) {
    findings.first = faults[0].text;
  }
  for (const Fault& fault : faults) {
    ++findings.byCheck[static_cast<size_t>(fault.check)];
  }
}

// Few ranks are enough: every defect shows with eight.
Findings examineFlat(const Mutant& mutant) {
  Findings findings;
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    const AlgorithmTraits promised = traitsOf(mutant.algorithm, ranks);
    for (const auto& shape : Shapes(promised.cut, ranks)) {
      for (const int root : rootsOf(mutant.algorithm, ranks)) {
        examineOne(mutant, {promised.collective, ranks, root, shape.blocks, shape.chunkCount}, promised,
                   Plays::Full, findings);
      }
    }
  }
  return findings;
}

Findings examineOnNodes(const Mutant& mutant) {
  const std::vector<std::vector<int>> placements = {
      {0},          {0, 0},          {0, 1},          {0, 1, 2},    {0, 1, 0, 1},
      {0, 0, 0, 1}, {0, 1, 1, 1, 0}, {0, 1, 2, 3, 4}, {2, 1, 0, 2}, {0, 0, 1, 1, 2, 2},
      {0, 1, 2, 3}, {0, 1, 2, 0, 2}};
  Findings findings;
  for (const std::vector<int>& labels : placements) {
    const Placement placement(labels);
    const int ranks = placement->ranks;
    const int ahead = static_cast<int>(findings.checks % 2);
    const AlgorithmTraits promised = traitsOf(mutant.algorithm, *placement, ahead);
    for (const auto& shape : Shapes(promised.cut, ranks)) {
      for (const int root : rootsOf(mutant.algorithm, ranks)) {
        examineOne(mutant,
                   {promised.collective, ranks, root, shape.blocks, shape.chunkCount, *placement, ahead},
                   promised, Plays::Sampled, findings);
      }
    }
  }
  return findings;
}

Findings examine(const Mutant& mutant) {
  const bool flat = static_cast<int>(mutant.algorithm) < kFlatAlgorithmCount;
  return flat ? examineFlat(mutant) : examineOnNodes(mutant);
}

TEST(Mutants, AreAllCaught) {
  ASSERT_GE(mutants().size(), 30u);
  std::string table;
  std::array<size_t, kCheckCount> catchers{};
  for (const Mutant& mutant : mutants()) {
    const Findings findings = examine(mutant);
    EXPECT_GT(findings.faulty, 0u) << "not caught: " << mutant.name;
    std::string checks;
    for (int i = 0; i < kCheckCount; ++i) {
      if (findings.byCheck[i] > 0) {
        ++catchers[i];
        checks += fmt::format("{}{}", checks.empty() ? "" : ", ", checkName(static_cast<Check>(i)));
      }
    }
    table += fmt::format("{}\n    caught in {} of {} operations by: {}\n", mutant.name, findings.faulty,
                         findings.checks, checks);
  }
  fmt::print("{}\nmutants caught by each check:\n", table);
  for (int i = 0; i < kCheckCount; ++i) {
    fmt::print("{:4}  {}\n", catchers[i], checkName(static_cast<Check>(i)));
  }
}

TEST(Mutants, UnchangedCopiesAreFaultless) {
  for (const Mutant& original : originals()) {
    const Findings findings = examine(original);
    EXPECT_GT(findings.checks, 0u);
    EXPECT_EQ(findings.faulty, 0u) << findings.first;
  }
}

}  // namespace
}  // namespace peal::test

// For tests of the simulator's core: options as the table has them, and grids of a lambda.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lib/executor/cuda/device.h"
#include "tests/cudasim/core/buffer.h"
#include "tests/cudasim/core/options.h"
#include "tests/cudasim/core/run.h"

namespace peal::cudasim {

inline Grid gridOf(unsigned blocks, unsigned threads, std::function<void()> body, int device = 0) {
  Grid grid;
  grid.grid = blocks;
  grid.block = threads;
  grid.body = std::move(body);
  grid.device = device;
  grid.name = "kernel";
  return grid;
}

inline RunResult runAlone(unsigned blocks, unsigned threads, std::function<void()> body) {
  Grid grid = gridOf(blocks, threads, std::move(body));
  Grid* const grids[] = {&grid};
  return run(grids, World::Alone, OnTrap::Return);
}
inline RunResult runGrids(std::vector<Grid> grids, World world = World::Alone) {
  std::vector<Grid*> pointers;
  for (Grid& grid : grids) {
    pointers.push_back(&grid);
  }
  return run(pointers, world, OnTrap::Return);
}

class CoreTest : public ::testing::Test {
 protected:
  CoreTest() { options() = defaultOptions(); }
  ~CoreTest() override { options() = defaultOptions(); }
};

inline ::testing::AssertionResult completed(const RunResult& result) {
  return result.ok() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << result.text;
}
// Ended by this trap, whose text holds each of `parts`.
inline ::testing::AssertionResult trapped(const RunResult& result, TrapKind kind,
                                          std::initializer_list<std::string> parts) {
  if (result.kind != kind) {
    return ::testing::AssertionFailure()
           << "kind " << static_cast<int>(result.kind) << ", text: " << result.text;
  }
  for (const std::string& part : parts) {
    if (result.text.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << result.text;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace peal::cudasim

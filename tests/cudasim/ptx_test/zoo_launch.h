// How the tests of the zoo launch its kernels.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "tests/cudasim/core/buffer.h"
#include "tests/cudasim/core/options.h"
#include "tests/cudasim/core/run.h"
#include "tests/cudasim/ptx_test/zoo/zoo.h"

namespace peal::cudasim {

inline RunResult launch(unsigned blocks, unsigned threads, std::function<void()> body,
                        size_t sharedBytes = 0) {
  Grid grid;
  grid.grid = dim3(blocks);
  grid.block = dim3(threads);
  grid.sharedBytes = sharedBytes;
  grid.body = std::move(body);
  Grid* const grids[] = {&grid};
  return run(grids, World::Alone, OnTrap::Return);
}

// Memory of zoo::Counters.
class PtxZooCounters : public testing::Test {
 protected:
  static constexpr uint32_t kThreads = 64, kBlocks = 6, kCount = kThreads * kBlocks;

  PtxZooCounters() {
    clear();
    counters_ = {words_.device<uint32_t>(), flags_.device<uint32_t>(), longs_.device<uint64_t>(),
                 sums_.device<float>(), kCount};
  }
  ~PtxZooCounters() override { options() = defaultOptions(); }
  void clear() {
    for (const DeviceBuffer* buffer : {&words_, &flags_, &longs_, &sums_}) {
      std::fill_n(buffer->host<uint8_t>(), buffer->bytes(), uint8_t{0});
    }
  }
  uint32_t* words() { return words_.host<uint32_t>(); }
  uint64_t* longs() { return longs_.host<uint64_t>(); }

  DeviceBuffer words_{64}, flags_{kCount * 4}, longs_{64}, sums_{64};
  zoo::Counters counters_{};
};

}  // namespace peal::cudasim

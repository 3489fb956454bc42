// How the simulator schedules and what its memory does, for tests that go through all of it.
#pragma once
#include <cstdint>

#include "tests/cudasim/core/options.h"

namespace peal::cuda::test {

enum class Mode : uint8_t { Fair, Random, Starve, Weak, WeakStarve };
constexpr int kModes = 5;
constexpr const char* kModeNames[kModes] = {"fair", "random", "starve", "weak", "weak and starve"};

// While it lives, the simulator runs in this mode.
class InMode {
 public:
  InMode(Mode mode, int64_t seed) : before_(cudasim::options()) {
    cudasim::Options& options = cudasim::options();
    options.seed = seed;
    options.random = mode == Mode::Random ? 1 : 0;
    options.starve = mode == Mode::Starve || mode == Mode::WeakStarve ? 1 : 0;
    options.weak = mode == Mode::Weak || mode == Mode::WeakStarve ? 1 : 0;
  }
  ~InMode() { cudasim::options() = before_; }
  InMode(const InMode&) = delete;
  InMode& operator=(const InMode&) = delete;

 private:
  cudasim::Options before_;
};

}  // namespace peal::cuda::test

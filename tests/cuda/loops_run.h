// Runs the kernels of lib/executor/cuda/loops_kernels.h on simulated device memory: arrays at any address,
// with guards around what may be written.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "lib/executor/cuda/loops_kernels.h"
#include "tests/cudasim/core/buffer.h"
#include "tests/cudasim/core/run.h"

namespace peal::cuda {

// An array in device memory, `shift` bytes behind a page. Where it ends, the memory ends that a kernel may
// touch: an access behind it is a trap. Bytes before it must stay as they are.
class DeviceArray {
 public:
  DeviceArray(std::vector<uint8_t> contents, size_t shift)
      : buffer_(shift + contents.size()), shift_(shift), bytes_(contents.size()) {
    buffer_.fill(kGuard);
    if (bytes_ != 0) {
      std::memcpy(buffer_.host(shift_), contents.data(), bytes_);
    }
  }

  void* device() const { return buffer_.device(shift_); }
  std::vector<uint8_t> contents() const {
    const auto* at = buffer_.host<uint8_t>(shift_);
    return {at, at + bytes_};
  }
  bool guardIsWhole() const {
    for (size_t i = 0; i < shift_; ++i) {
      if (*buffer_.host<uint8_t>(i) != kGuard) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr uint8_t kGuard = 0xa5;
  cudasim::DeviceBuffer buffer_;
  size_t shift_, bytes_;
};

struct Shape {
  unsigned blocks = 1, threads = 32;
};

inline void launch(LoopKernel kernel, const LoopArgs& args, Shape shape) {
  cudasim::Grid grid{
      .grid = {shape.blocks}, .block = {shape.threads}, .body = [&] { kernel(args); }, .name = "loop"};
  cudasim::Grid* const grids[] = {&grid};
  const cudasim::RunResult result = cudasim::run(grids, cudasim::World::Alone, cudasim::OnTrap::Return);
  ASSERT_TRUE(result.ok()) << result.text;
}

}  // namespace peal::cuda

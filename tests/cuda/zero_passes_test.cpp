// The kernels of the ZeRO engine against the host's loops, bit for bit: sizes, alignments, values of all
// magnitudes, several blocks, in the simulator's modes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "lib/zero/cuda/kernels.h"
#include "lib/zero/loops.h"
#include "lib/zero/norm.h"
#include "tests/cuda/kernel_modes.h"
#include "tests/cudasim/core/buffer.h"
#include "tests/cudasim/core/run.h"

namespace peal::cuda {
namespace {

using cudasim::DeviceBuffer;
using test::InMode;
using test::Mode;

constexpr size_t kGuardElements = 16;

// An array in device memory, `shift` elements behind an aligned address, where the memory ends that a kernel
// may touch; what is before it stays as it is.
template <class T>
class ShiftedArray {
 public:
  ShiftedArray(const std::vector<T>& values, size_t shift)
      : begin_((kGuardElements + shift) * sizeof(T)),
        count_(values.size()),
        buffer_(begin_ + values.size() * sizeof(T) + 1) {
    buffer_.fill(0x5a);
    if (!values.empty()) {
      std::memcpy(buffer_.template host<T>(begin_), values.data(), values.size() * sizeof(T));
    }
  }
  T* data() const { return buffer_.template device<T>(begin_); }
  std::vector<T> values() const {
    const T* from = buffer_.template host<T>(begin_);
    return {from, from + count_};
  }
  bool isFramed() const {
    const auto* bytes = buffer_.template host<uint8_t>();
    bool whole = bytes[begin_ + count_ * sizeof(T)] == 0x5a;
    for (size_t i = 0; i < begin_; ++i) {
      whole = whole && bytes[i] == 0x5a;
    }
    return whole;
  }

 private:
  size_t begin_, count_;
  DeviceBuffer buffer_;
};

void launchOn(unsigned blocks, unsigned threads, const char* name, const std::function<void()>& body) {
  cudasim::Grid grid{.grid = {blocks}, .block = {threads}, .body = body, .name = name};
  cudasim::Grid* const grids[] = {&grid};
  const cudasim::RunResult result = cudasim::run(grids, cudasim::World::Alone, cudasim::OnTrap::Return);
  ASSERT_TRUE(result.ok()) << result.text;
}

// exponents: fields of the bf16 values are drawn from [least, least + spread].
std::vector<uint16_t> drawnValues(size_t count, unsigned seed, int least, int spread) {
  std::mt19937 engine(seed);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    const auto field = static_cast<unsigned>(least) + engine() % static_cast<unsigned>(spread + 1);
    value = static_cast<uint16_t>((engine() & 0x807fu) | field << 7);
  }
  return values;
}

std::vector<uint32_t> bitsOfSums(const std::vector<float>& sums) {
  std::vector<uint32_t> bits(sums.size());
  std::transform(sums.begin(), sums.end(), bits.begin(),
                 [](float sum) { return __builtin_bit_cast(uint32_t, sum); });
  return bits;
}

TEST(ZeroPasses, GiveTheBitsOfTheLoops) {
  for (const size_t count : {0, 1, 7, 8, 63, 1031, 4096}) {
    for (const auto& [valueShift, sumShift] : {std::pair<size_t, size_t>{0, 0}, {3, 3}, {8, 4}, {1, 0}}) {
      for (int kind = 0; kind < 3; ++kind) {
        SCOPED_TRACE(testing::Message() << count << " elements, shifts " << valueShift << " and " << sumShift
                                        << ", kind " << kind);
        std::vector<uint16_t> values = drawnValues(count, 7, 100, 30);
        std::vector<float> sums(count);
        for (size_t i = 0; i < count; ++i) {
          sums[i] = static_cast<float>(static_cast<int>(i % 101) - 50) * 0.0173f;
        }
        const ShiftedArray<uint16_t> onValues(values, valueShift);
        const ShiftedArray<float> onSums(sums, sumShift);
        const ZeroPassArgs args{onValues.data(), onSums.data(), count, kind};
        launchOn(3, 64, "zeroPass", [&] { zeroPassKernel()(args); });
        const zero::Loops& loops = zero::loops();
        if (kind == 0) {
          loops.widen(values.data(), sums.data(), count);
        } else if (kind == 1) {
          loops.add(values.data(), sums.data(), count);
        } else {
          loops.addAndRound(values.data(), sums.data(), count);
        }
        EXPECT_EQ(onValues.values(), values);
        EXPECT_EQ(bitsOfSums(onSums.values()), bitsOfSums(sums));
        EXPECT_TRUE(onValues.isFramed() && onSums.isFramed());
      }
    }
  }
}

zero::SquareSum countedByKernel(const std::vector<uint16_t>& values, size_t shift, unsigned blocks) {
  const ShiftedArray<uint16_t> onValues(values, shift);
  const ShiftedArray<uint64_t> counted(std::vector<uint64_t>(2 * zero::kExponents), 0);
  // In two launches, as two buckets of a step are.
  const size_t half = values.size() / 2;
  for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, half}, {half, values.size() - half}}) {
    const ZeroSquaresArgs args{onValues.data() + begin, count, counted.data()};
    launchOn(blocks, kZeroSquareThreads, "zeroSquares", [&] { zeroSquaresKernel()(args); });
  }
  EXPECT_TRUE(onValues.isFramed() && counted.isFramed());
  zero::CountedSquares numbers;
  const std::vector<uint64_t> all = counted.values();
  std::copy_n(all.begin(), zero::kExponents, numbers.low.begin());
  std::copy_n(all.begin() + zero::kExponents, zero::kExponents, numbers.high.begin());
  zero::SquareSum sum;
  sum.addCounted(numbers);
  return sum;
}

void expectSquares(const std::vector<uint16_t>& values, size_t shift, unsigned blocks) {
  const zero::SquareSum byKernel = countedByKernel(values, shift, blocks);
  zero::SquareSum byLoops;
  byLoops.add(values.data(), values.size());
  EXPECT_EQ(byKernel.nonFinite(), byLoops.nonFinite());
  const double expected = zero::squareSumValue(byLoops.limbs());
  EXPECT_EQ(zero::squareSumValue(byKernel.limbs()), expected);
  double plain = 0;
  for (const uint16_t value : values) {
    const double wide = fromBf16(value);
    plain += std::isfinite(wide) ? wide * wide : 0;
  }
  EXPECT_NEAR(expected, plain, 1e-12 * plain);
}

TEST(ZeroPasses, SquaresAreExactWhateverTheirMagnitudes) {
  struct Magnitudes {
    int least, spread;
  };
  for (const Magnitudes magnitudes :
       {Magnitudes{110, 12}, {110, 40}, {0, 3}, {0, 254}, {240, 14}, {239, 15}, {0, 255}}) {
    for (const size_t count : {1, 9, 256, 3001}) {
      for (const size_t shift : {0, 3, 8}) {
        SCOPED_TRACE(testing::Message() << count << " values, exponents " << magnitudes.least << " + "
                                        << magnitudes.spread << ", shift " << shift);
        expectSquares(drawnValues(count, static_cast<unsigned>(count), magnitudes.least, magnitudes.spread),
                      shift, 2);
      }
    }
  }
  expectSquares({}, 0, 1);
  expectSquares(std::vector<uint16_t>(777, 0), 1, 2);
  // The largest value as often as fills the low part many times.
  expectSquares(std::vector<uint16_t>(20000, 0x7f7f), 0, 1);
}

TEST(ZeroPasses, SquaresInAllModes) {
  const std::vector<uint16_t> values = drawnValues(5000, 3, 90, 60);
  for (int mode = 0; mode < test::kModes; ++mode) {
    SCOPED_TRACE(test::kModeNames[mode]);
    for (int64_t seed = 1; seed <= PEAL_TEST_DRAWS; ++seed) {
      const InMode inMode(static_cast<Mode>(mode), seed);
      expectSquares(values, 5, 4);
    }
  }
}

}  // namespace
}  // namespace peal::cuda

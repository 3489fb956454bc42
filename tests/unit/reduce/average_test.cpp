// The integers' average at the values where a division by way of floating point could go wrong: multiples of
// the divisor and their neighbours, up to the ends of the type.
#include <gtest/gtest.h>

#include <limits>

#include "lib/reduce/dispatch.h"
#include "tests/unit/reduce/reference.h"

namespace peal {
namespace {

template <class T>
std::vector<T> valuesNearMultiples(int divisor) {
  std::vector<T> values;
  const auto add = [&values](int64_t value) {
    for (const int64_t near : {value - 1, value, value + 1}) {
      if (near >= int64_t{std::numeric_limits<T>::min()} && near <= int64_t{std::numeric_limits<T>::max()}) {
        values.push_back(static_cast<T>(near));
      }
    }
  };
  for (const int64_t end : {int64_t{std::numeric_limits<T>::min()}, int64_t{std::numeric_limits<T>::max()}}) {
    for (int64_t steps = 0; steps < 64; ++steps) {
      add((end / divisor - (end < 0 ? -steps : steps)) * divisor);
      add((end < 0 ? -steps : steps) * divisor);
    }
    add(end);
  }
  return values;
}

template <class T>
void checkAverage(pealDataType_t type) {
  for (const Isa isa : reference::isas()) {
    for (int divisor = 1; divisor <= 300; ++divisor) {
      const std::vector<T> values = valuesNearMultiples<T>(divisor);
      std::vector<T> averages(values.size());
      const void* const source = values.data();
      ReduceOp op;
      op.kind = pealAvg;
      op.ranks = divisor;
      reduceWith(isa, type, op,
                 {.sources = {&source, 1},
                  .destinations = {averages.data(), nullptr},
                  .count = values.size(),
                  .finish = Finish::Yes});
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(int64_t{averages[i]}, int64_t{values[i]} / divisor)
            << int64_t{values[i]} << " / " << divisor << ", " << isaName(isa);
      }
    }
  }
}

TEST(IntegerAverage, TruncatesTowardZeroForEveryDivisor) {
  checkAverage<int8_t>(pealInt8);
  checkAverage<uint8_t>(pealUint8);
  checkAverage<int32_t>(pealInt32);
  checkAverage<uint32_t>(pealUint32);
}

}  // namespace
}  // namespace peal

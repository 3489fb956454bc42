// More than 2^31 elements in one call.
#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

TEST(Large, MoreThanTwoToThe31Elements) {
  constexpr size_t kCount = (size_t{1} << 31) + 12345;
  runAsProcesses(2, [](pealComm_t comm, int rank) {
    void* memory = nullptr;
    PEAL_ASSERT_OK(pealMemAlloc(&memory, kCount));
    auto* data = static_cast<uint8_t*>(memory);
    const auto value = [](size_t i, int r) {
      return static_cast<uint8_t>((i >> 20) % 100 + static_cast<size_t>(r));
    };
    for (size_t i = 0; i < kCount; ++i) {
      data[i] = value(i, rank);
    }
    PEAL_EXPECT_OK(pealAllReduce(data, data, kCount, pealUint8, pealSum, comm, nullptr));
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) {
      wrong += data[i] != static_cast<uint8_t>(value(i, 0) + value(i, 1)) ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0u);
    PEAL_EXPECT_OK(pealMemFree(memory));
  });
}

}  // namespace
}  // namespace peal::test

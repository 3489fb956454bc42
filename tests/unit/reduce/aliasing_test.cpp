// A destination that is one of the sources: in place, as the collectives call it.
#include <gtest/gtest.h>

#include <cstring>

#include "lib/reduce/dispatch.h"
#include "tests/unit/reduce/reference.h"

namespace peal {
namespace {

constexpr size_t kCount = 1003;  // odd bytes of tail for every type

class AliasingTest : public testing::TestWithParam<pealDataType_t> {
 protected:
  using Bytes = std::vector<uint8_t>;

  std::vector<Bytes> randomSources(size_t sourceCount) const {
    reference::Random random(sourceCount);
    const size_t size = elementBytes(GetParam());
    std::vector<Bytes> sources(sourceCount, Bytes(kCount * size));
    for (Bytes& source : sources) {
      for (size_t i = 0; i < kCount; ++i) {
        const uint64_t bits = reference::randomElement(GetParam(), random);
        std::memcpy(source.data() + i * size, &bits, size);
      }
    }
    return sources;
  }

  // Reduces into sources first and second (second == first: one destination only).
  std::vector<Bytes> reducedInPlace(Isa isa, Store store, std::vector<Bytes> sources, size_t first,
                                    size_t second) const {
    std::vector<const void*> pointers;
    for (const Bytes& source : sources) {
      pointers.push_back(source.data());
    }
    ReduceArgs args{.sources = pointers, .count = kCount, .store = store};
    args.destinations = {sources[first].data(), first == second ? nullptr : sources[second].data()};
    reduceWith(isa, GetParam(), ReduceOp{}, args);
    return sources;
  }
};

TEST_P(AliasingTest, WritesOverItsOwnSourcesAndNoOthers) {
  for (const size_t sourceCount : {1U, 2U, 3U, 8U}) {
    const std::vector<Bytes> sources = randomSources(sourceCount);
    std::vector<const void*> pointers;
    for (const Bytes& source : sources) {
      pointers.push_back(source.data());
    }
    Bytes expected(kCount * elementBytes(GetParam()));
    reduceWith(Isa::Baseline, GetParam(), ReduceOp{},
               {.sources = pointers, .destinations = {expected.data(), nullptr}, .count = kCount});
    for (const Isa isa : reference::isas()) {
      for (const Store store : {Store::Cached, Store::Streaming}) {
        for (size_t first = 0; first < sourceCount; ++first) {
          for (size_t second = 0; second < sourceCount; ++second) {
            const std::vector<Bytes> after = reducedInPlace(isa, store, sources, first, second);
            for (size_t s = 0; s < sourceCount; ++s) {
              ASSERT_EQ(after[s], s == first || s == second ? expected : sources[s])
                  << isaName(isa) << ", " << sourceCount << " sources, into " << first << " and " << second
                  << ": source " << s;
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AliasingTest, testing::ValuesIn(reference::kTypes), reference::kNameOfType);

}  // namespace
}  // namespace peal

// Every data type, operation, number of sources and destinations, length, alignment, instruction set and
// kind of store against the plain reference, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lib/reduce/dispatch.h"
#include "tests/unit/reduce/guarded_buffer.h"
#include "tests/unit/reduce/reference.h"

namespace peal {
namespace {

using Buffers = std::vector<std::unique_ptr<GuardedBuffer>>;

struct OpCase {
  std::string name;
  ReduceOp op;
  int rawSource;
  Finish finish;
};

ReduceOp plain(pealRedOp_t kind, int ranks) {
  ReduceOp op;
  op.kind = kind;
  op.ranks = ranks;
  return op;
}

ReduceOp preMultiplied(pealDataType_t type, reference::Random& random) {
  ReduceOp op = plain(pealSum, 1);
  op.preMultiply = true;
  const uint64_t scalar = reference::randomElement(type, random);
  std::memcpy(op.scalar.data(), &scalar, sizeof scalar);
  return op;
}

std::vector<OpCase> opCases(pealDataType_t type, size_t sourceCount, reference::Random& random) {
  const auto ranks = static_cast<int>(sourceCount);
  const int last = ranks - 1;
  return {{"sum", plain(pealSum, ranks), -1, Finish::Yes},
          {"prod", plain(pealProd, ranks), -1, Finish::Yes},
          {"max", plain(pealMax, ranks), -1, Finish::Yes},
          {"min", plain(pealMin, ranks), -1, Finish::Yes},
          {"avg over the sources", plain(pealAvg, ranks), -1, Finish::Yes},
          {"avg over 128 ranks", plain(pealAvg, 128), 0, Finish::Yes},
          {"avg unfinished", plain(pealAvg, ranks), -1, Finish::No},
          {"pre-multiplied, first raw", preMultiplied(type, random), 0, Finish::Yes},
          {"pre-multiplied, last raw", preMultiplied(type, random), last, Finish::Yes},
          {"pre-multiplied, none raw", preMultiplied(type, random), -1, Finish::Yes}};
}

void storeElement(uint8_t* to, uint64_t bits, size_t size) { std::memcpy(to, &bits, size); }
uint64_t loadElement(const uint8_t* from, size_t size) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, size);
  return bits;
}

class ReduceTest : public testing::TestWithParam<pealDataType_t> {
 protected:
  pealDataType_t type() const { return GetParam(); }
  size_t size() const { return elementBytes(type()); }

  // gapBytes moves the buffers out of alignment, each by another amount.
  Buffers makeSources(const std::vector<std::vector<uint64_t>>& values, size_t count, size_t gapBytes) const {
    Buffers sources;
    for (size_t s = 0; s < values.size(); ++s) {
      sources.push_back(std::make_unique<GuardedBuffer>(count * size(), gapBytes * (s + 1)));
      for (size_t i = 0; i < count; ++i) {
        storeElement(sources.back()->data() + i * size(), values[s][i], size());
      }
    }
    return sources;
  }

  std::string firstDifference(const uint8_t* got, const std::vector<uint64_t>& expected) const {
    for (size_t i = 0; i < expected.size(); ++i) {
      const uint64_t bits = loadElement(got + i * size(), size());
      if (bits != expected[i]) {
        return fmt::format("element {} is {:#x}, not {:#x}", i, bits, expected[i]);
      }
    }
    return "";
  }

  void runAll(const OpCase& c, const Buffers& sources, const std::vector<uint64_t>& expected,
              size_t gapBytes) {
    std::vector<const void*> pointers;
    for (const auto& source : sources) {
      pointers.push_back(source->data());
    }
    for (const Isa isa : reference::isas()) {
      for (const Store store : {Store::Cached, Store::Streaming}) {
        for (const size_t destinationCount : {1U, 2U}) {
          GuardedBuffer first(expected.size() * size(), gapBytes);
          GuardedBuffer second(expected.size() * size(), 2 * gapBytes);
          ReduceArgs args{.sources = pointers, .rawSource = c.rawSource, .count = expected.size()};
          args.destinations = {first.data(), destinationCount == 2 ? second.data() : nullptr};
          args.finish = c.finish;
          args.store = store;
          args.secondCached = gapBytes == size();
          reduceWith(isa, type(), c.op, args);
          const std::string where =
              fmt::format("{} {}, {} sources, {} elements, gap {}, {}, {}, {} destinations", typeName(type()),
                          c.name, sources.size(), expected.size(), gapBytes, isaName(isa),
                          store == Store::Streaming ? "streaming" : "cached", destinationCount);
          ASSERT_EQ(firstDifference(first.data(), expected), "") << where;
          ASSERT_TRUE(first.intact() && second.intact()) << where;
          if (destinationCount == 2) {
            ASSERT_EQ(firstDifference(second.data(), expected), "") << where << ", second destination";
          }
        }
      }
    }
  }

  void check(size_t sourceCount, size_t count, uint64_t seed) {
    reference::Random random(seed);
    std::vector<std::vector<uint64_t>> values(sourceCount, std::vector<uint64_t>(count));
    for (auto& source : values) {
      for (uint64_t& value : source) {
        value = reference::randomElement(type(), random);
      }
    }
    const std::vector<OpCase> cases = opCases(type(), sourceCount, random);
    std::vector<std::vector<uint64_t>> expected(cases.size());
    for (size_t c = 0; c < cases.size(); ++c) {
      for (size_t i = 0; i < count; ++i) {
        std::vector<uint64_t> column;
        for (const auto& source : values) {
          column.push_back(source[i]);
        }
        expected[c].push_back(
            reference::reduce(type(), cases[c].op, column, cases[c].rawSource, cases[c].finish));
      }
    }
    // In line with the page's end, one element off it, and off every element's alignment.
    std::vector<size_t> gaps{0, size(), 3};
    if (count > 1000) {
      gaps = {size(), 3};  // an odd count is off the vectors' alignment anyway
    }
    for (const size_t gapBytes : gaps) {
      const Buffers sources = makeSources(values, count, gapBytes);
      for (size_t c = 0; c < cases.size(); ++c) {
        runAll(cases[c], sources, expected[c], gapBytes);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
};

TEST_P(ReduceTest, EqualsTheReferenceBitForBit) {
  uint64_t seed = 1;
  for (const size_t sourceCount : {1U, 2U, 3U, 8U, 17U}) {
    // The last: several blocks of every type, and for few sources a page and more.
    for (const size_t count : {0U, 1U, 31U, 63U, 64U, 65U, sourceCount > 3 ? 521U : 4097U}) {
      check(sourceCount, count, seed++);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_P(ReduceTest, TakesAsManySourcesAsThereMayBeRanks) { check(128, 65, 1000); }

INSTANTIATE_TEST_SUITE_P(Types, ReduceTest, testing::ValuesIn(reference::kTypes), reference::kNameOfType);

}  // namespace
}  // namespace peal

// How arrays are cut, against a plain reference: chunk.h is what every algorithm and the checker share.
#include "algorithms/chunk.h"

#include <gtest/gtest.h>

#include <vector>

namespace peal::test {
namespace {

std::vector<size_t> counts(const Blocks& blocks) {
  std::vector<size_t> list;
  for (int i = 0; i < blocks.parts; ++i) {
    list.push_back(blocks.block(i).count);
  }
  return list;
}

TEST(Blocks, TheFirstOnesAreOneLonger) {
  EXPECT_EQ(counts({10, 4, nullptr}), (std::vector<size_t>{3, 3, 2, 2}));
  EXPECT_EQ(counts({8, 4, nullptr}), (std::vector<size_t>{2, 2, 2, 2}));
  EXPECT_EQ(counts({2, 4, nullptr}), (std::vector<size_t>{1, 1, 0, 0}));
  EXPECT_EQ(counts({0, 3, nullptr}), (std::vector<size_t>{0, 0, 0}));
  EXPECT_EQ(counts({7, 1, nullptr}), (std::vector<size_t>{7}));
}

TEST(Blocks, FollowGivenStarts) {
  const size_t starts[] = {0, 0, 5, 5, 9};
  const Blocks blocks{9, 4, starts};
  EXPECT_EQ(counts(blocks), (std::vector<size_t>{0, 5, 0, 4}));
  EXPECT_EQ(blocks.block(3).offset, 5u);
  EXPECT_EQ(blocks.longest(), 5u);
}

TEST(Blocks, CountRanksModuloParts) {
  const Blocks blocks{10, 4, nullptr};
  for (const int i : {-7, -4, -3, 1, 5, 9}) {
    const int same = ((i % 4) + 4) % 4;
    EXPECT_EQ(blocks.block(i).offset, blocks.block(same).offset) << i;
    EXPECT_EQ(blocks.block(i).count, blocks.block(same).count) << i;
  }
}

TEST(Blocks, HoldMoreElementsThan32Bits) {
  const Blocks blocks{(size_t{1} << 40) + 3, 7, nullptr};
  EXPECT_EQ(blocks.start(7), blocks.total);
  EXPECT_EQ(blocks.longest(), ((size_t{1} << 40) + 3 + 6) / 7);
}

// Every element is in exactly one chunk of one round, and the chunks of a block follow each other.
TEST(Round, CoversEveryElementOnce) {
  const size_t starts[] = {0, 0, 5, 5, 23};
  for (const Blocks& blocks : {Blocks{23, 4, nullptr}, Blocks{23, 4, starts}, Blocks{3, 4, nullptr},
                               Blocks{23, 1, nullptr}, Blocks{0, 4, nullptr}}) {
    for (const size_t chunkCount : {size_t{1}, size_t{2}, size_t{5}, size_t{23}, size_t{100}}) {
      std::vector<int> seen(blocks.total, 0);
      for (size_t begin = 0; begin < blocks.longest() + chunkCount; begin += chunkCount) {
        for (int i = 0; i < blocks.parts; ++i) {
          const Chunk chunk = Round{blocks, begin, chunkCount}.chunk(i);
          const Chunk block = blocks.block(i);
          ASSERT_LE(chunk.count, chunkCount);
          ASSERT_GE(chunk.offset, block.offset);
          ASSERT_LE(chunk.offset + chunk.count, block.offset + block.count);
          for (size_t k = 0; k < chunk.count; ++k) {
            ++seen[chunk.offset + k];
          }
        }
      }
      EXPECT_EQ(seen, std::vector<int>(blocks.total, 1)) << blocks.total << " by " << chunkCount;
    }
  }
}

}  // namespace
}  // namespace peal::test

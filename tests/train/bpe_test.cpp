// The byte-pair encoding: exact on any bytes, the same each time, stored and read again; and a text of
// tokens.
#include "tools/train/bpe.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tools/common/error.h"
#include "tools/train/parameters.h"
#include "tools/train/text.h"

namespace peal::train {
namespace {

std::string constitution() { return readText(PEAL_TRAIN_FIXTURE); }

std::string randomBytes(uint64_t seed, size_t count, uint64_t kinds) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    bytes.push_back(static_cast<char>(mix(seed, 1, i) % kinds));
  }
  return bytes;
}

TEST(BpeTest, joinsTheMostFrequentPairFirst) {
  // "ab" occurs 4 times, then "abc" 3 times; "xy" twice; nothing else twice.
  const Bpe bpe = Bpe::train("ab abc,abc;abc\nxy(xy)", 1000);
  ASSERT_GE(bpe.vocabulary(), 259u);
  EXPECT_EQ(bpe.bytesOf(256), "ab");
  EXPECT_EQ(bpe.bytesOf(257), "abc");
  EXPECT_EQ(bpe.bytesOf(258), "xy");
  EXPECT_EQ(bpe.vocabulary(), 259u);
  EXPECT_EQ(bpe.encode("abcab"), (std::vector<uint32_t>{257, 256}));
}

TEST(BpeTest, everyStringOfBytesComesBack) {
  const Bpe bpe = Bpe::train(constitution(), 700);
  EXPECT_EQ(bpe.vocabulary(), 700u);
  std::string allBytes(256, '\0');
  std::iota(allBytes.begin(), allBytes.end(), '\0');
  for (const std::string& bytes :
       {std::string(), std::string(1, '\0'), std::string(1000, ' '), std::string(1000, 'e'), allBytes,
        constitution(), randomBytes(1, 20000, 256), randomBytes(2, 20000, 3),
        std::string("caf\xc3\xa9 \xff\xfe  the  the\r\n\t ")}) {
    EXPECT_EQ(bpe.decode(bpe.encode(bytes)), bytes);
  }
}

// What training itself made of the text is what encoding makes of it: the joins are made in the same order.
TEST(BpeTest, isShorterAndDeterministicAndSurvivesStorage) {
  const std::string text = constitution();
  const Bpe first = Bpe::train(text, 512), again = Bpe::train(text, 512);
  EXPECT_EQ(first.serialize(), again.serialize());
  const Bpe stored = Bpe::parse(first.serialize());
  EXPECT_EQ(stored.serialize(), first.serialize());
  const auto tokens = first.encode(text);
  EXPECT_EQ(stored.encode(text), tokens);
  EXPECT_LT(2 * tokens.size(), text.size());
  EXPECT_LT(Bpe::train(text, 1024).encode(text).size(), tokens.size());
  EXPECT_EQ(Bpe::train("", 512).vocabulary(), kBpeBytes);
}

TEST(BpeTest, refusesADamagedTokenizer) {
  const std::string good = Bpe::train(constitution(), 260).serialize();
  for (const std::string& bad : {std::string(), std::string("peal-bpe 2\n"), good.substr(0, good.size() - 1),
                                 good + "1\n", good + "1 2 3\n", good + "1 99999\n", good + "260 1\n",
                                 good + "-1 2\n", good + good.substr(good.find('\n') + 1)}) {
    EXPECT_THROW(Bpe::parse(bad), tools::ToolError) << bad;
  }
  EXPECT_EQ(Bpe::parse(good + "1 2\n").vocabulary(), 261u);
  // Each token twice the one before: 44 lines of 2^44 bytes.
  std::string doubling = "peal-bpe 1\n97 97\n";
  for (int token = 256; token < 299; ++token) {
    doubling += std::to_string(token) + " " + std::to_string(token) + "\n";
  }
  EXPECT_THROW(Bpe::parse(doubling), tools::ToolError);
}

TEST(BpeText, hasTheSameCharactersInFewerSymbols) {
  const std::u32string characters = decodeUtf8(constitution() + "\u00e9\u4e2d\u00e9\u4e2d", "us");
  const Text plain("us", characters, 16), bpe("us", characters, 16, 400);
  EXPECT_EQ(bpe.vocabulary(), 400u);
  EXPECT_EQ(bpe.alphabetSize(), plain.vocabulary());
  EXPECT_EQ(bpe.trainingCharacters(), plain.training());
  EXPECT_EQ(bpe.heldOutCharacters(), plain.heldOut());
  EXPECT_EQ(bpe.decode(bpe.heldOut()), plain.decode(plain.heldOut()));
  EXPECT_EQ(bpe.decode(bpe.training()), plain.decode(plain.training()));
  EXPECT_LT(bpe.training().size(), plain.training().size());
  EXPECT_EQ(bpe.characterCount(bpe.heldOut().data(), bpe.heldOut().size()), plain.heldOut().size());
  EXPECT_EQ(plain.characterCount(plain.heldOut().data(), 7), 7u);
  EXPECT_EQ(bpe.sampleStart(), static_cast<uint32_t>('\n'));
  const Text oneLine("t", U"bab abba abba abba baba", 1, 0, 0.4);
  EXPECT_EQ(oneLine.sampleStart(), oneLine.training().front());
  // Trained on the training part alone.
  const std::u32string_view training(characters.data(), plain.training().size());
  EXPECT_EQ(bpe.bpe()->serialize(), Bpe::train(encodeUtf8(training), 400).serialize());
}

}  // namespace
}  // namespace peal::train

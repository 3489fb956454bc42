// Characters, the split, the order of the data, the n-gram yardstick, and texts that cannot be used.
#include "tools/train/text.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "tools/common/error.h"
#include "tools/train/ngram.h"

namespace peal::train {
namespace {

using tools::UsageError;

// The sentence of the UsageError that body throws.
template <class Body>
std::string usageError(Body body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(no error)";
}

#define EXPECT_IN(part, whole) EXPECT_NE((whole).find(part), std::string::npos) << (whole)

TEST(Utf8, roundTripsEveryLength) {
  const std::string text = "a\n\u00e9\u0416\u4e2d\U0001F514\u07ff\u0800\uffff\U0010ffff z";
  const std::u32string characters = decodeUtf8(text, "test");
  EXPECT_EQ(characters.size(), 12u);
  EXPECT_EQ(characters[5], U'\U0001F514');
  EXPECT_EQ(encodeUtf8(characters), text);
}

TEST(Utf8, refusesWhatIsMalformedAndNamesTheOffset) {
  const std::string bad[] = {"ab\x80",              // continuation without a start
                             "ab\xc3",              // cut off
                             "ab\xc3z",             // no continuation
                             "ab\xc0\xaf",          // longer than needed, two bytes
                             "ab\xe0\x80\xaf",      // longer than needed, three bytes
                             "ab\xed\xa0\x80",      // surrogate
                             "ab\xf4\x90\x80\x80",  // above U+10FFFF
                             "ab\xf8\x88\x80\x80\x80",
                             "ab\xff"};
  for (const std::string& text : bad) {
    const std::string sentence = usageError([&] { decodeUtf8(text, "some.txt"); });
    EXPECT_IN("some.txt", sentence);
    EXPECT_IN("offset 2 ", sentence);
  }
}

TEST(TextTest, splitsEncodesAndDecodes) {
  std::u32string characters;
  for (size_t i = 0; i < 1000; ++i) {
    characters.push_back(U"\u00e9xyz\U0001F514"[i % 5]);
  }
  const Text text("t", characters, 20);
  EXPECT_EQ(text.vocabulary(), 5u);
  EXPECT_EQ(text.training().size(), 950u);
  EXPECT_EQ(text.heldOut().size(), 50u);
  std::vector<uint32_t> all = text.training();
  all.insert(all.end(), text.heldOut().begin(), text.heldOut().end());
  EXPECT_EQ(text.decode(all), encodeUtf8(characters));
  EXPECT_EQ(text.encode(characters), all);
  EXPECT_IN("U+0061", usageError([&] { text.encode(U"a"); }));
}

TEST(TextTest, refusesEmptyAndShortTexts) {
  EXPECT_IN("is empty", usageError([] { Text("t", U"", 8); }));
  const std::u32string hundred(100, U'a');  // 95 and 5
  EXPECT_IN("--context 5 needs at least 6", usageError([&] { Text("t", hundred, 5); }));
  EXPECT_EQ(Text("t", hundred, 4).heldOut().size(), 5u);
  EXPECT_IN("is empty", usageError([] { Text("t", U"", 0); }));
}

TEST(TextTest, orderIsAFunctionOfSeedStepAndSlotAndCoversTheText) {
  const std::u32string characters(2000, U'a');
  const Text text("t", characters, 16);
  std::set<size_t> starts;
  for (uint64_t step = 0; step < 400; ++step) {
    for (uint64_t slot = 0; slot < 64; ++slot) {
      const size_t start = text.sequenceStart(1, step, slot, 16);
      EXPECT_EQ(start, text.sequenceStart(1, step, slot, 16));
      ASSERT_LE(start + 16 + 1, text.training().size());
      starts.insert(start);
    }
  }
  EXPECT_EQ(starts.size(), text.training().size() - 16);  // first and last start included
  EXPECT_NE(text.sequenceStart(1, 2, 3, 16), text.sequenceStart(2, 2, 3, 16));
  EXPECT_NE(text.sequenceStart(1, 2, 3, 16), text.sequenceStart(1, 3, 2, 16));
}

TEST(TextTest, targetsAreTheInputsOneCharacterOn) {
  std::u32string characters;
  for (size_t i = 0; i < 3000; ++i) {
    characters.push_back(U'a' + static_cast<char32_t>(i * i % 23));
  }
  const Text text("t", characters, 12);
  uint32_t inputs[12], targets[12];
  text.sequence(9, 4, 2, 12, inputs, targets);
  const size_t start = text.sequenceStart(9, 4, 2, 12);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(inputs[i], text.training()[start + i]);
    EXPECT_EQ(targets[i], text.training()[start + i + 1]);
  }
}

TEST(ReadText, namesTheFileAndTheReason) {
  EXPECT_IN("'/no/such/file': No such file or directory", usageError([] { readText("/no/such/file"); }));
  EXPECT_IN("it is a directory", usageError([] { readText("/"); }));
  if (geteuid() != 0) {
    const auto path = std::filesystem::temp_directory_path() / ("unreadable." + std::to_string(getpid()));
    std::ofstream(path) << "text";
    chmod(path.c_str(), 0);
    EXPECT_IN("Permission denied", usageError([&] { readText(path); }));
    std::filesystem::remove(path);
  }
}

TEST(NgramTest, isCountingForOrderZeroAndOne) {
  // Training a a b: N = 3, T = 2; p(a) = (2 + 2/2) / 5, p(b) = (1 + 2/2) / 5.
  const std::vector<uint32_t> training = {0, 0, 1}, heldOut = {1, 0};
  EXPECT_NEAR(ngramLoss(training, heldOut, 2, 0), -(std::log(0.4) + std::log(0.6)) / 2, 1e-12);
  // After a: a and b once each, N = 2, T = 2. After b: never seen. The first held-out symbol follows b.
  EXPECT_NEAR(ngramLoss(training, {1}, 2, 1), -std::log(0.4), 1e-12);
  EXPECT_NEAR(ngramLoss({0, 0, 1, 0}, {1}, 2, 1), -std::log((1 + 2 * (1 + 2 * 0.5) / 6) / 4), 1e-12);
}

TEST(NgramTest, longerHistoryIsBetterOnRealText) {
  const Text text("us", decodeUtf8(readText(PEAL_TRAIN_FIXTURE), "us"), 16);
  double before = std::log(static_cast<double>(text.vocabulary()));
  for (size_t order = 0; order <= 3; ++order) {
    const double loss = ngramLoss(text.training(), text.heldOut(), text.vocabulary(), order);
    EXPECT_LT(loss, before) << order;
    EXPECT_GT(loss, 1.0);
    before = loss;
  }
}

}  // namespace
}  // namespace peal::train

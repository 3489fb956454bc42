// Quantities on peal-plan's command line.
#include "tools/plan/quantity.h"

#include <gtest/gtest.h>

#include "tools/common/error.h"

namespace peal::tools {
namespace {

TEST(Quantity, CountsHaveDecimalSuffixes) {
  EXPECT_EQ(parseCount("7B", "p"), 7e9);
  EXPECT_EQ(parseCount("1.5b", "p"), 1.5e9);
  EXPECT_EQ(parseCount("350M", "p"), 350e6);
  EXPECT_EQ(parseCount("2k", "p"), 2000);
  EXPECT_EQ(parseCount("2K", "p"), 2000);
  EXPECT_EQ(parseCount("1e9", "p"), 1e9);
  EXPECT_EQ(parseCount("6738149376", "p"), 6738149376.0);
  EXPECT_EQ(parseCount("0", "p"), 0);
}

TEST(Quantity, AmountsKnowBytes) {
  EXPECT_EQ(parseAmount("80GB", "m"), 80e9);
  EXPECT_EQ(parseAmount("25MiB", "m"), 25.0 * 1024 * 1024);
  EXPECT_EQ(parseAmount("1Gi", "m"), 1024.0 * 1024 * 1024);
  EXPECT_EQ(parseAmount("400T", "m"), 400e12);
  EXPECT_EQ(parseAmount("512B", "m"), 512);
  EXPECT_EQ(parseAmount("5e10", "m"), 5e10);
}

TEST(Quantity, LinksInBitsAndTimes) {
  EXPECT_EQ(parseRate("400Gbit", "b"), 50e9);
  EXPECT_EQ(parseRate("50GB", "b"), 50e9);
  EXPECT_EQ(parseTime("5us", "l"), 5e-6);
  EXPECT_EQ(parseTime("1.5ms", "l"), 1.5e-3);
  EXPECT_EQ(parseTime("2s", "l"), 2);
  EXPECT_EQ(parseTime("5e-6", "l"), 5e-6);
  EXPECT_EQ(parseTime("0", "l"), 0);
  for (const char* text : {"", "bit", "5GBbit", "Gbit"}) {
    EXPECT_THROW(parseRate(text, "--bandwidth"), UsageError) << text;
  }
  for (const char* text : {"", "us", "5 us", "5h", "-1s"}) {
    EXPECT_THROW(parseTime(text, "--latency"), UsageError) << text;
  }
}

TEST(Quantity, WrongTextIsRefusedWithItsOption) {
  for (const char* text : {"", "B", "7X", "7BB", "-1", "nan", "inf", "7 B", "7MiB", "1e400"}) {
    EXPECT_THROW(parseCount(text, "--parameters"), UsageError) << text;
  }
  for (const char* text : {"", "GB", "7iB", "7Gib", "-3G", "7BG"}) {
    EXPECT_THROW(parseAmount(text, "--memory"), UsageError) << text;
  }
  try {
    parseCount("7X", "--parameters");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--parameters: \"7X\""), std::string::npos) << error.what();
  }
}

TEST(Quantity, FourDigitsAreShown) {
  EXPECT_EQ(formatAmount(0), "0");
  EXPECT_EQ(formatAmount(999), "999");
  EXPECT_EQ(formatAmount(1234), "1.234 k");
  EXPECT_EQ(formatAmount(56875000000.0), "56.88 G");
  EXPECT_EQ(formatAmount(999999), "1.000 M");
  EXPECT_EQ(formatAmount(1.12e12), "1.120 T");
  EXPECT_EQ(formatSeconds(1.51125), "1.511 s");
  EXPECT_EQ(formatSeconds(0.075), "75 ms");
  EXPECT_EQ(formatSeconds(1.25e-5), "12.5 us");
  EXPECT_EQ(formatSeconds(0), "0");
}

}  // namespace
}  // namespace peal::tools

// Link costs as text.
#include "lib/tuner/links.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "lib/tuner/links_file.h"

namespace peal::test {
namespace {

const LinkTable kUnround{{0.75, 0.125, 0.0001}, {31.5, 4, 1.0 / 3}};

TEST(Links, SurviveTheirText) {
  const Result<LinkTable> read = parseLinks(formatLinks(kUnround), "test");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, kUnround);
  EXPECT_EQ(hashOf(*read), hashOf(kUnround));
  LinkTable other = kUnround;
  other.between.usPerByte = std::nextafter(other.between.usPerByte, 1.0);
  EXPECT_NE(hashOf(other), hashOf(kUnround));
}

TEST(Links, MayHaveCommentsAndBlanks) {
  const Result<LinkTable> read = parseLinks(
      "inside_latency_us 1 # fast\r\n\n inside_gap_us\t0.5\ninside_us_per_byte 1e-4\n"
      "between_latency_us 30\nbetween_gap_us 5\n# the wire\nbetween_us_per_byte 0.008",
      "test");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, (LinkTable{{1, 0.5, 1e-4}, {30, 5, 0.008}}));
}

TEST(Links, MaySayWhatGpusCost) {
  LinkTable links = kUnround;
  links.gpu.llUs = 0.6;
  links.gpu.linkUsPerByte = 1.0 / 300000;
  const std::string text = formatLinks(links);
  EXPECT_NE(text.find("gpu_ll_us 0.6\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("gpu_ll128_us"), std::string::npos) << text;
  const Result<LinkTable> read = parseLinks(text, "test");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, links);
  EXPECT_NE(hashOf(links), hashOf(kUnround));
}

void expectRefused(const std::string& text, const std::string& part) {
  const Result<LinkTable> read = parseLinks(text, "costs.txt");
  ASSERT_FALSE(read) << text;
  EXPECT_EQ(read.error().code, pealInvalidArgument);
  EXPECT_NE(read.error().message.find(part), std::string::npos) << read.error().message;
}

TEST(Links, NameWhatIsWrong) {
  const std::string good = formatLinks(kUnround);
  expectRefused("", "costs.txt: inside_latency_us is missing");
  expectRefused(good + "between_gap_us 3\n", "costs.txt, line 8: between_gap_us stands there twice");
  expectRefused("speed 3\n", "costs.txt, line 1: unknown key \"speed\"; known are inside_latency_us");
  expectRefused("inside_gap_us fast\n", "\"fast\" of inside_gap_us is not a number from 0");
  expectRefused("inside_gap_us -1\n", "\"-1\"");
  expectRefused("inside_gap_us inf\n", "\"inf\"");
  expectRefused("inside_gap_us\n", "\"\" of inside_gap_us");
}

TEST(Links, AByteNeverCostsNothing) {
  EXPECT_EQ(bytesUs(100, 30), 70);
  EXPECT_EQ(bytesUs(100, 90), 25);
  EXPECT_EQ(bytesUs(100, 250), 25);
}

TEST(LinksFile, IsWrittenWholeAndReadBack) {
  const std::string path = testing::TempDir() + "peal_links_test";
  std::filesystem::remove(path);
  Result<std::optional<LinkTable>> read = readLinksFile(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_FALSE(read->has_value());
  writeLinksFile(path, kUnround);
  read = readLinksFile(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(**read, kUnround);
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  std::ofstream(path) << "nonsense\n";
  read = readLinksFile(path);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find(path), std::string::npos) << read.error().message;
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace peal::test

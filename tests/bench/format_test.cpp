// Sizes, command line and the text of the table, without a communicator.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "bench/harness/chart.h"
#include "bench/harness/json_report.h"
#include "bench/harness/options.h"
#include "bench/harness/table.h"
#include "tools/common/error.h"
#include "tools/common/sizes.h"

namespace peal::bench {
namespace {

using tools::formatSizeBytes;
using tools::parseSizeBytes;
using tools::UsageError;

const Collective kReducing{"all_reduce_perf", true, false, true, nullptr, nullptr, nullptr, nullptr, nullptr};
const Collective kRooted{"broadcast_perf", false, true, true, nullptr, nullptr, nullptr, nullptr, nullptr};
const Collective kPairwise{"sendrecv_perf", false, false, false, nullptr, nullptr, nullptr, nullptr, nullptr};

struct Parsed {
  Options options;
  std::optional<int> code;
  std::string said;  // on the error output
};

Parsed parse(const Collective& collective, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), collective.program);
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  Parsed parsed;
  testing::internal::CaptureStderr();
  parsed.code = parseOptions(collective, static_cast<int>(argv.size()), argv.data(), parsed.options);
  parsed.said = testing::internal::GetCapturedStderr();
  return parsed;
}

TEST(Sizes, Parse) {
  EXPECT_EQ(parseSizeBytes("8", "-b"), 8U);
  EXPECT_EQ(parseSizeBytes("64K", "-b"), 65536U);
  EXPECT_EQ(parseSizeBytes("64k", "-b"), 65536U);
  EXPECT_EQ(parseSizeBytes("32M", "-b"), uint64_t{32} << 20);
  EXPECT_EQ(parseSizeBytes("1G", "-b"), uint64_t{1} << 30);
  EXPECT_EQ(parseSizeBytes("2T", "-b"), uint64_t{2} << 40);
  EXPECT_EQ(parseSizeBytes("1.5K", "-b"), 1536U);
  EXPECT_EQ(parseSizeBytes("0", "-b"), 0U);
  for (const char* wrong :
       {"", "K", "-8", "8B", "1.5", "8 K", "0x10", "1e3", "nan", "infK", "9000000000G", "8KK"}) {
    EXPECT_THROW(parseSizeBytes(wrong, "-b"), UsageError) << wrong;
  }
}

TEST(Sizes, Format) {
  for (const char* text : {"0", "8", "1023", "1K", "64K", "3M", "1G", "2T", "65537"}) {
    EXPECT_EQ(formatSizeBytes(parseSizeBytes(text, "-b")), text);
  }
}

TEST(Options, DefaultsAreThoseOfNcclTests) {
  const Options options = parse(kReducing, {}).options;
  EXPECT_EQ(options.minBytes, uint64_t{32} << 20);
  EXPECT_EQ(options.maxBytes, uint64_t{32} << 20);
  EXPECT_EQ(options.stepBytes, uint64_t{1} << 20);
  EXPECT_EQ(options.iterations, 20);
  EXPECT_EQ(options.warmups, 1);
  EXPECT_EQ(options.aggregated, 1);
  EXPECT_EQ(options.cycles, 1);
  EXPECT_EQ(options.checks, 1);
  EXPECT_EQ(options.average, Average::Mean);
  EXPECT_EQ(options.blocking, Blocking::No);
  EXPECT_EQ(options.combines, std::vector{Combine::Sum});
  EXPECT_EQ(options.types, std::vector{pealFloat32});
  EXPECT_EQ(options.root, 0);
  EXPECT_EQ(options.ranks.threads, 1);
  EXPECT_EQ(options.ranks.processes, 0);
  EXPECT_FALSE(options.registered || options.hostStream || options.reportCpuTime || options.reportMemory);
}

TEST(Options, ShortLongAndGluedForms) {
  const Options options = parse(kReducing, {"-b8", "--maxbytes", "1K",  "-f", "2",  "-n5", "--warmup_iters=0",
                                            "-g",  "2",          "-t2", "-z", "1",  "-d",  "all",
                                            "-o",  "all",        "-R",  "1",  "-m", "3"})
                              .options;
  EXPECT_EQ(options.minBytes, 8U);
  EXPECT_EQ(options.maxBytes, 1024U);
  EXPECT_EQ(options.stepFactor, 2U);
  EXPECT_EQ(options.iterations, 5);
  EXPECT_EQ(options.warmups, 0);
  EXPECT_EQ(options.ranks.threads, 4);
  EXPECT_EQ(options.blocking, Blocking::EachCallAndBarrier);
  EXPECT_EQ(options.types.size(), 12U);
  EXPECT_EQ(options.combines.size(), 6U);
  EXPECT_TRUE(options.registered);
  EXPECT_EQ(options.aggregated, 3);
}

TEST(Options, RootsByNumberAndAll) {
  EXPECT_EQ(parse(kRooted, {"-r", "3"}).options.root, 3);
  EXPECT_EQ(parse(kRooted, {"-r", "all"}).options.root, -1);
  EXPECT_EQ(parse(kRooted, {"-r", "-1"}).options.root, -1);
  EXPECT_EQ(parse(kRooted, {"-r", "-2"}).code, tools::kExitUsage);
  EXPECT_EQ(parse(kRooted, {"-r", "two"}).code, tools::kExitUsage);
}

TEST(Options, AWrongOneIsASentenceAndCode2) {
  const std::vector<std::vector<std::string>> wrong{{"--nonsense"},
                                                    {"-b", "8Q"},
                                                    {"-b", "2K", "-e", "1K"},
                                                    {"-n", "0"},
                                                    {"-n", "many"},
                                                    {"-d", "quad"},
                                                    {"-o", "xor"},
                                                    {"-a", "4"},
                                                    {"-z", "9"},
                                                    {"-O", "2"},
                                                    {"-R", "3"},
                                                    {"-c", "-1"},
                                                    {"--ranks", "0"},
                                                    {"-g", "0"},
                                                    {"extra"},
                                                    {"-b", "1", "-e", "2", "-i", "0"},
                                                    {"-b"},
                                                    {"--plot", "busbw.txt"},
                                                    {"-b", "0", "-e", "8", "-f", "2"}};
  for (const auto& arguments : wrong) {
    const Parsed parsed = parse(kReducing, arguments);
    EXPECT_EQ(parsed.code, tools::kExitUsage) << arguments[0];
    EXPECT_EQ(parsed.said.rfind("all_reduce_perf: ", 0), 0U) << parsed.said;
    EXPECT_NE(parsed.said.find("Try all_reduce_perf --help."), std::string::npos) << parsed.said;
    EXPECT_EQ(std::count(parsed.said.begin(), parsed.said.end(), '\n'), 1) << parsed.said;
  }
}

TEST(Options, FlagsWithoutMeaningSaySo) {
  const Options options = parse(kReducing, {"-G", "5", "-x", "1", "-r", "2"}).options;
  ASSERT_EQ(options.remarks.size(), 3U);
  EXPECT_EQ(options.remarks[0].rfind("-G: ", 0), 0U);
  EXPECT_EQ(options.remarks[1].rfind("-x: ", 0), 0U);
  EXPECT_EQ(options.remarks[2].rfind("-r: ", 0), 0U);
  EXPECT_TRUE(parse(kReducing, {"-G", "0"}).options.remarks.empty());
}

TEST(Options, WhatIsNotDefinedInPlaceIsNotRunInPlace) {
  EXPECT_EQ(parse(kPairwise, {}).options.places, Places::OutOfPlaceOnly);
  EXPECT_EQ(parse(kPairwise, {"-O", "0"}).code, tools::kExitUsage);
  EXPECT_EQ(parse(kReducing, {"-O", "0"}).options.places, Places::InPlaceOnly);
  EXPECT_EQ(parse(kReducing, {"-O", "1"}).options.places, Places::OutOfPlaceOnly);
}

TEST(Options, LeastBandwidthFromTheEnvironment) {
  EXPECT_FALSE(parse(kReducing, {}).options.minBusBandwidth.has_value());
  setenv("NCCL_TESTS_MIN_BW", "3.5", 1);
  EXPECT_EQ(parse(kReducing, {}).options.minBusBandwidth, 3.5);
  setenv("PEAL_TESTS_MIN_BW", "2", 1);
  EXPECT_EQ(parse(kReducing, {}).options.minBusBandwidth, 2.0);
  setenv("PEAL_TESTS_MIN_BW", "fast", 1);
  EXPECT_EQ(parse(kReducing, {}).code, tools::kExitUsage);
  unsetenv("PEAL_TESTS_MIN_BW");
  unsetenv("NCCL_TESTS_MIN_BW");
}

TEST(Options, Steps) {
  const auto sizes = [](std::vector<std::string> arguments) {
    return sizesToMeasure(parse(kReducing, std::move(arguments)).options);
  };
  using Sizes = std::vector<uint64_t>;
  EXPECT_EQ(sizes({"-b", "8", "-e", "64", "-f", "2"}), (Sizes{8, 16, 32, 64}));
  EXPECT_EQ(sizes({"-b", "8", "-e", "63", "-f", "2"}), (Sizes{8, 16, 32}));
  EXPECT_EQ(sizes({"-b", "1", "-e", "100", "-f", "10"}), (Sizes{1, 10, 100}));
  EXPECT_EQ(sizes({"-b", "0", "-e", "30", "-i", "10"}), (Sizes{0, 10, 20, 30}));
  EXPECT_EQ(sizes({"-b", "1M", "-e", "3M"}), (Sizes{1 << 20, 2 << 20, 3 << 20}));
  EXPECT_EQ(sizes({"-b", "5", "-e", "5", "-i", "0"}), (Sizes{5}));
  EXPECT_EQ(sizes({"-b", "0", "-e", "0", "-f", "2"}), (Sizes{0}));
  EXPECT_EQ(sizes({"-b", "4096T", "-e", "4096T", "-f", "4096"}).size(), 1U) << "the next size would overflow";
}

TEST(Ranks, OneSourceDecides) {
  using tools::chooseRankSource;
  using tools::RankSource;
  EXPECT_EQ(chooseRankSource({0, 1}, 1, "none"), RankSource::Alone);
  EXPECT_EQ(chooseRankSource({4, 1}, 1, "none"), RankSource::Processes);
  EXPECT_EQ(chooseRankSource({1, 1}, 1, "slurm"), RankSource::Processes);
  EXPECT_EQ(chooseRankSource({0, 4}, 1, "none"), RankSource::Threads);
  EXPECT_EQ(chooseRankSource({0, 1}, 2, "openmpi"), RankSource::Launcher);
  EXPECT_THROW(chooseRankSource({4, 2}, 1, "none"), UsageError);
  EXPECT_THROW(chooseRankSource({4, 1}, 2, "openmpi"), UsageError);
  EXPECT_THROW(chooseRankSource({0, 2}, 2, "torchrun"), UsageError);
}

TEST(Table, NumbersFitTheirColumns) {
  EXPECT_EQ(fitNumber(0, 7), "0.00");
  EXPECT_EQ(fitNumber(1234.567, 7), "1234.57");
  EXPECT_EQ(fitNumber(12345.67, 7), "12345.7");
  EXPECT_EQ(fitNumber(123456.7, 7), "123457");
  EXPECT_EQ(fitNumber(9999999.4, 7), "9999999");
  EXPECT_EQ(fitNumber(12345678, 7), "1.2e+07");
  EXPECT_EQ(fitNumber(999.999, 6), "1000.0");
  EXPECT_EQ(fitNumber(123456789, 6), "1e+08");
  for (double value = 0.001; value < 1e12; value *= 3.7) {
    EXPECT_LE(fitNumber(value, 7).size(), 7U) << value;
    EXPECT_LE(fitNumber(value, 6).size(), 6U) << value;
  }
}

Row sampleRow() {
  Row row;
  row.sizeBytes = 1024;
  row.count = 256;
  row.combine = Combine::Sum;
  row.outOfPlace = Measured{12.345, 0.083, 0.124, 0, 0};
  row.inPlace = Measured{1.5, 100.25, 98.125, 3, 0};
  row.wire = {1536, 1536, 2048, 4};
  return row;
}

TEST(Table, ARowIsThatOfNcclTests) {
  Row row = sampleRow();
  EXPECT_EQ(rowText(row),
            "        1024           256     float     sum      -1    12.35    0.08    0.12       0     1.50  "
            "100.25   "
            "98.12       3\n");
  row.inPlace->wrong.reset();
  row.timestamp = "2026-11-29 17:48:53";
  const std::string text = rowText(row);
  EXPECT_NE(text.find("   N/A"), std::string::npos);
  EXPECT_NE(text.find("2026-11-29 17:48:53\n"), std::string::npos);
  row.inPlace.reset();
  EXPECT_NE(rowText(row).find("     0.00    0.00    0.00     N/A"), std::string::npos);
}

TEST(Table, HeaderColumnsEndWhereTheRowsDo) {
  const std::string header = headerText({});
  const std::string row = rowText(sampleRow());
  std::vector<std::string> lines;
  std::istringstream stream(header);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  ASSERT_EQ(lines.size(), 4U);
  for (const char* title : {"size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"}) {
    const size_t end = lines[2].find(title) + std::string(title).size();
    EXPECT_NE(row[end - 1], ' ') << title;
    EXPECT_EQ(row[end], ' ') << title;
  }
  for (const std::string& line : lines) {
    EXPECT_EQ(line[0], '#');
  }
}

TEST(Table, FooterVerdicts) {
  Options options;
  EXPECT_NE(footerText(options, "x_perf", {0, 1.5, false}).find("# Out of bounds values : 0 OK\n"),
            std::string::npos);
  EXPECT_NE(footerText(options, "x_perf", {0, 1.5, false}).find("# Avg bus bandwidth    : 1.5 \n"),
            std::string::npos);
  EXPECT_NE(footerText(options, "x_perf", {7, 1.5, false}).find("values : 7 FAILED\n"), std::string::npos);
  options.minBusBandwidth = 2;
  EXPECT_NE(footerText(options, "x_perf", {0, 1.5, true}).find("bandwidth    : 1.5 FAILED\n"),
            std::string::npos);
  EXPECT_NE(footerText(options, "x_perf", {0, 3, false}).find("bandwidth    : 3 OK\n"), std::string::npos);
}

TEST(Table, WhatPealAddsIsComment) {
  Row alone = sampleRow();
  alone.wire = {};
  std::istringstream stream(boundText({sampleRow(), alone}) + memoryText({{1 << 20, 2 << 20, 0, 4 << 20}}));
  int lines = 0;
  for (std::string line; std::getline(stream, line); ++lines) {
    EXPECT_EQ(line.substr(0, 1), "#") << line;
  }
  EXPECT_EQ(lines, 8);
  EXPECT_NE(boundText({sampleRow()}).find("1.000"), std::string::npos);
  EXPECT_NE(boundText({alone}).find("N/A"), std::string::npos);
}

TEST(Json, ReportHasTheKeysOfNcclTests) {
  Options options;
  options.stepFactor = 2;
  RankInfo rank;
  rank.pid = 42;
  const Preamble preamble{options,       "all_reduce_perf", 100, "2 processes (--ranks)",
                          "0.1 0.2 0.3", {rank, rank}};
  const std::vector<Row> rows{sampleRow()};
  const auto json = reportJson({preamble, "then", "now", rows, Summary{0, 1.25, false}, {}, {}});
  EXPECT_EQ(json["version"], 2);
  EXPECT_EQ(json["config"]["step_factor"], 2);
  EXPECT_EQ(json["config"]["devices"].size(), 2U);
  const auto& row = json["results"][0];
  EXPECT_EQ(row["size"], 1024);
  EXPECT_EQ(row["count"], 256);
  EXPECT_EQ(row["type"], "float");
  EXPECT_EQ(row["redop"], "sum");
  EXPECT_EQ(row["root"], "-1");
  EXPECT_EQ(row["out_of_place"]["time"], 12.345);
  EXPECT_EQ(row["in_place"]["nwrong"], 3);
  EXPECT_EQ(row["peal"]["bound_bytes_per_rank"], 1536.0);
  EXPECT_EQ(json["out_of_bounds"]["okay"], "true");
  EXPECT_EQ(json["average_bus_bandwidth"]["okay"], "unchecked");
  EXPECT_FALSE(json.contains("env")) << "the environment can hold a password";
}

TEST(Json, AnUnwritablePathIsASentence) {
  EXPECT_THROW(probeFile("/nonexistent/folder/x.json"), UsageError);
  EXPECT_THROW(writeFile("/nonexistent/folder/x.json", "{}"), tools::ToolError);
}

TEST(Chart, OneCurvePerPlaceAndNothingThatALogAxisCannotShow) {
  Row empty = sampleRow();
  empty.sizeBytes = 0;
  Row onlyOut = sampleRow();
  onlyOut.inPlace.reset();
  const auto chart = bandwidthChart("title", "subtitle", {sampleRow(), empty, onlyOut});
  const auto& series = chart["panels"][0]["series"];
  ASSERT_EQ(series.size(), 2U);
  EXPECT_EQ(series[0]["name"], "out of place");
  EXPECT_EQ(series[0]["x"].size(), 2U);
  EXPECT_EQ(series[1]["y"], std::vector{98.125});
}

}  // namespace
}  // namespace peal::bench

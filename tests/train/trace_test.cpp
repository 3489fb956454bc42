// --trace: the file of a run, loaded as a viewer would.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/train/run_fixture.h"

namespace peal::train {
namespace {

struct Span {
  std::string name, category;
  int64_t beginNs, endNs;
  json arguments;
};

int64_t nanoseconds(const json& microseconds) { return std::llround(1e3 * microseconds.get<double>()); }

// By rank and row.
using Rows = std::map<std::pair<int, std::string>, std::vector<Span>>;

class TraceTest : public RunTest {
 protected:
  Rows load() const {
    std::ifstream stream(file("trace"));
    const json trace = json::parse(stream);
    std::map<std::pair<int, int>, std::string> names;
    Rows rows;
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") == "M") {
        if (event.at("name") == "thread_name") {
          names[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
        }
        continue;
      }
      EXPECT_EQ(event.at("ph"), "X");
      const int64_t begin = nanoseconds(event.at("ts")), length = nanoseconds(event.at("dur"));
      EXPECT_GE(length, 0);
      rows[{event.at("pid"), names.at({event.at("pid"), event.at("tid")})}].push_back(
          {event.at("name"), event.at("cat"), begin, begin + length, event.at("args")});
      EXPECT_TRUE(event.at("args").at("bytesSent").is_number_unsigned());
    }
    return rows;
  }

  Arguments traced(const Arguments& more) const {
    Arguments all = {"--trace", file("trace"), "--ranks", "2", "--layers", "2", "--eval-every", "0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

// Each span lies within the one that was open at its beginning, or the row cannot be drawn.
void expectNested(const std::vector<Span>& row) {
  std::vector<Span> open;
  for (const Span& span : row) {
    while (!open.empty() && open.back().endNs <= span.beginNs) {
      open.pop_back();
    }
    if (!open.empty()) {
      EXPECT_GE(span.beginNs, open.back().beginNs) << span.name;
      EXPECT_LE(span.endNs, open.back().endNs) << span.name << " in " << open.back().name;
    }
    open.push_back(span);
  }
}

TEST_F(TraceTest, spansNestAndEveryUnitAndBucketIsThere) {
  for (const char* stage : {"2", "3"}) {
    SCOPED_TRACE(stage);
    train(traced({"--steps", "3", "--stage", stage, "--accumulate", "2", "--bucket-bytes", "2000"}));
    const Rows rows = load();
    ASSERT_EQ(rows.size(), 4u);
    for (const auto& [place, row] : rows) {
      expectNested(row);
      std::map<std::string, int> count;
      for (const Span& span : row) {
        ++count[span.name];
      }
      if (place.second == "model") {
        for (const char* name :
             {"forward embeddings", "forward block 0", "backward block 1", "backward final norm"}) {
          EXPECT_EQ(count[name], 6) << name;
        }
        EXPECT_EQ(count["step 3"], 1);
        EXPECT_EQ(count["micro-batch 1"], 3);
        EXPECT_EQ(count["update"], 3);
      } else {
        EXPECT_EQ(count["norm and flags"], 3);
        EXPECT_EQ(
            count[stage == std::string("3") ? "reduce-scatter of block 0" : "reduce-scatter of bucket 1"], 6);
        EXPECT_EQ(count["all-gather of block 1"], stage == std::string("3") ? 12 : 0);
      }
    }
  }
}

TEST_F(TraceTest, sumsAreThoseOfTheReports) {
  const std::vector<json> events = train(traced({"--steps", "4", "--stage", "3"}));
  double communication = 0, waits = 0;
  for (const json& event : events) {
    if (event.at("event") == "step") {
      communication += event.at("communicationSeconds").get<double>();
      waits += event.at("waitSeconds").get<double>();
    }
  }
  Rows rows = load();
  int64_t communicationNs = 0, waitNs = 0;
  for (const Span& span : rows[{0, "communication"}]) {
    communicationNs += span.endNs - span.beginNs;
  }
  int64_t lastStep = 0;
  for (const Span& span : rows[{0, "model"}]) {
    lastStep = span.category == "step" ? std::max(lastStep, span.endNs) : lastStep;
    waitNs +=
        span.category == "wait" && (lastStep == 0 || span.endNs <= lastStep) ? span.endNs - span.beginNs : 0;
  }
  // Nothing is under way after a step at stage 3.
  EXPECT_NEAR(1e-9 * static_cast<double>(communicationNs), communication, 1e-7);
  EXPECT_NEAR(1e-9 * static_cast<double>(waitNs), waits, 1e-7);
}

// That two things went on at once is in the hands of the scheduler: on a busy machine not in every step and,
// for some of them, not in every run. What cannot be at once is not in any.
constexpr int kRuns = 20;

bool overlap(const Span& one, const Span& other) {
  return one.beginNs < other.endNs && other.beginNs < one.endNs;
}

// The embeddings' gradients come last, and their bucket with them.
TEST_F(TraceTest, everyBucketButTheLastIsReducedWhileBackwardGoesOn) {
  constexpr int kBuckets = 6;
  std::set<int> inBackward;
  for (int run = 0; run < kRuns && inBackward.size() + 1 < kBuckets; ++run) {
    train(traced(
        {"--steps", "8", "--stage", "2", "--width", "48", "--bucket-bytes", "28K", "--context", "64"}));
    Rows rows = load();
    std::set<int> reduced;
    for (const Span& span : rows[{0, "communication"}]) {
      if (!span.name.starts_with("reduce-scatter of ")) {
        continue;
      }
      const int bucket = span.arguments.at("bucket");
      EXPECT_EQ(span.name, "reduce-scatter of bucket " + std::to_string(bucket));
      reduced.insert(bucket);
      for (const Span& pass : rows[{0, "model"}]) {
        const bool isBackward = pass.category == "pass" && pass.name == "backward";
        if (isBackward && pass.beginNs <= span.beginNs && span.beginNs < pass.endNs) {
          inBackward.insert(bucket);
        }
      }
    }
    ASSERT_EQ(reduced.size(), kBuckets);
  }
  inBackward.erase(kBuckets - 1);
  EXPECT_EQ(inBackward, (std::set<int>{0, 1, 2, 3, 4}));
}

// Pairs of a unit that computes and one that is gathered meanwhile: no wait is computing.
std::set<std::pair<std::string, std::string>> gathersBesideCompute(Rows& rows) {
  std::set<std::pair<std::string, std::string>> pairs;
  const std::vector<Span>& model = rows[{0, "model"}];
  for (const Span& gather : rows[{0, "communication"}]) {
    if (!gather.name.starts_with("all-gather of ")) {
      continue;
    }
    const std::string gathered = gather.arguments.at("unit");
    EXPECT_EQ(gather.name, "all-gather of " + gathered);
    for (const Span& unit : model) {
      if (unit.category != "unit" || !overlap(unit, gather)) {
        continue;
      }
      EXPECT_TRUE(unit.name.ends_with(unit.arguments.at("unit").get<std::string>())) << unit.name;
      const int64_t begin = std::max(unit.beginNs, gather.beginNs), end = std::min(unit.endNs, gather.endNs);
      int64_t waitedNs = 0;
      for (const Span& wait : model) {
        waitedNs += wait.category == "wait"
                        ? std::max<int64_t>(std::min(end, wait.endNs) - std::max(begin, wait.beginNs), 0)
                        : 0;
      }
      if (end - begin > waitedNs) {
        pairs.emplace(unit.name, gathered);
      }
    }
  }
  return pairs;
}

TEST_F(TraceTest, everyBlockIsGatheredWhileTheOneBeforeItComputes) {
  const std::set<std::pair<std::string, std::string>> wanted = {{"forward block 0", "block 1"},
                                                                {"forward block 1", "block 2"},
                                                                {"backward block 2", "block 1"},
                                                                {"backward block 1", "block 0"}};
  std::set<std::pair<std::string, std::string>> missing = wanted;
  for (int run = 0; run < kRuns && !missing.empty(); ++run) {
    train(traced({"--steps", "40", "--stage", "3", "--layers", "3", "--width", "48", "--context", "128"}));
    Rows rows = load();
    for (const auto& pair : gathersBesideCompute(rows)) {
      missing.erase(pair);
    }
  }
  EXPECT_EQ(missing, decltype(missing)());
}

TEST_F(TraceTest, endsAfterTheStepsThatWereAskedFor) {
  train(traced({"--steps", "5", "--trace-steps", "2"}));
  Rows rows = load();
  std::map<std::string, int> count;
  for (const Span& span : rows[{1, "model"}]) {
    ++count[span.name];
  }
  EXPECT_EQ(count["step 2"], 1);
  EXPECT_EQ(count["step 3"], 0);
}

}  // namespace
}  // namespace peal::train

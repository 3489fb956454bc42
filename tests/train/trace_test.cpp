// --trace: the file of a run, loaded as a viewer would.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/train/run_fixture.h"

namespace peal::train {
namespace {

struct Span {
  std::string name, category;
  int64_t beginNs, endNs;
  uint64_t bytesSent;
};

int64_t nanoseconds(const json& microseconds) { return std::llround(1e3 * microseconds.get<double>()); }

class TraceTest : public RunTest {
 protected:
  // By rank and row.
  using Rows = std::map<std::pair<int, std::string>, std::vector<Span>>;

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
          {event.at("name"), event.at("cat"), begin, begin + length,
           event.at("args").at("bytesSent").get<uint64_t>()});
    }
    return rows;
  }

  Arguments traced(Arguments more) const {
    more.insert(more.end(), {"--trace", file("trace"), "--ranks", "2", "--layers", "2", "--eval-every", "0"});
    return more;
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

TEST_F(TraceTest, bucketsAreReducedWhileBackwardGoesOn) {
  train(traced({"--steps", "8", "--stage", "2", "--width", "48", "--bucket-bytes", "8K", "--context", "64"}));
  Rows rows = load();
  size_t inBackward = 0;
  for (const Span& pass : rows[{0, "model"}]) {
    if (pass.category == "pass" && pass.name == "backward") {
      for (const Span& span : rows[{0, "communication"}]) {
        inBackward +=
            span.name.starts_with("reduce-scatter") && span.beginNs < pass.endNs && span.endNs > pass.beginNs;
      }
    }
  }
  EXPECT_GT(inBackward, 8u);
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

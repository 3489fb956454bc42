// pealZeroSetTrace: spans are the collectives and waits that the counters and reports tell of.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>
#include <vector>

#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

constexpr int kRanks = 3;

struct Traced {
  std::vector<pealZeroSpan_t> spans;
  std::vector<pealZeroReport_t> reports;
  pealZeroCounters_t counters;
  int64_t beginNs, endNs;
};

int64_t now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<Traced> traceSteps(int stage, int microBatches) {
  std::vector<Traced> all(kRanks);
  onRanks(kRanks, [&](int rank, pealComm_t comm) {
    pealZeroOptions_t options = defaultOptions();
    options.stage = stage;
    options.microBatches = microBatches;
    options.bucketBytes = 150;
    Trainer trainer(comm, rank, options, unevenShape());
    trainer.step();  // what sealing took is in its report
    Traced& traced = all[static_cast<size_t>(rank)];
    const pealZeroCounters_t before = trainer.engine().counters();
    traced.beginNs = now();
    trainer.engine().setTrace(
        [](void* user, const pealZeroSpan_t* span) {
          static_cast<std::vector<pealZeroSpan_t>*>(user)->push_back(*span);
        },
        &traced.spans);
    for (int i = 0; i < 3; ++i) {
      traced.reports.push_back(trainer.step());
    }
    trainer.engine().setTrace(nullptr, nullptr);
    traced.endNs = now();
    traced.counters = trainer.engine().counters();
    for (int i = 0; i < pealZeroNumCounters; ++i) {
      traced.counters.calls[i] -= before.calls[i];
      traced.counters.bytesSent[i] -= before.bytesSent[i];
    }
    const size_t told = traced.spans.size();
    trainer.step();
    EXPECT_EQ(traced.spans.size(), told) << "told of a span after the trace's end";
  });
  return all;
}

TEST(Trace, EveryCollectiveIsASpanAndTheyFollowEachOther) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    for (const Traced& traced : traceSteps(stage, 2)) {
      uint64_t calls[pealZeroNumCounters] = {}, bytes[pealZeroNumCounters] = {};
      int64_t last = traced.beginNs;
      for (const pealZeroSpan_t& span : traced.spans) {
        EXPECT_LE(span.beginNs, span.endNs);
        EXPECT_LE(span.endNs, traced.endNs);
        if (span.kind == pealZeroSpanWait) {
          EXPECT_GE(span.beginNs, traced.beginNs);
          EXPECT_EQ(span.bytesSent, 0u);
          continue;
        }
        EXPECT_GE(span.beginNs, last);  // one stream, in order
        last = span.endNs;
        ++calls[span.counter];
        bytes[span.counter] += span.bytesSent;
        EXPECT_EQ(span.index >= 0, span.counter != pealZeroControl);
      }
      for (int i = 0; i < pealZeroNumCounters; ++i) {
        EXPECT_EQ(calls[i], traced.counters.calls[i]) << i;
        EXPECT_EQ(bytes[i], traced.counters.bytesSent[i]) << i;
      }
    }
  }
}

// At stages 0 and 3 nothing is under way when a step has ended, so that the reports have all of it.
TEST(Trace, SumsAreTheReports) {
  for (const int stage : {0, 3}) {
    SCOPED_TRACE(stage);
    for (const Traced& traced : traceSteps(stage, 1)) {
      double collectives = 0, waits = 0, reportedCollectives = 0, reportedWaits = 0;
      for (const pealZeroSpan_t& span : traced.spans) {
        (span.kind == pealZeroSpanWait ? waits : collectives) +=
            1e-9 * static_cast<double>(span.endNs - span.beginNs);
      }
      for (const pealZeroReport_t& report : traced.reports) {
        reportedCollectives += report.communicationSeconds;
        reportedWaits += report.waitSeconds;
      }
      EXPECT_GT(collectives, 0);
      EXPECT_NEAR(collectives, reportedCollectives, 1e-9);
      EXPECT_GE(waits, reportedWaits - 1e-9);  // ending the trace waits, too
      EXPECT_GT(reportedWaits, 0);
    }
  }
}

TEST(Trace, BucketsAreNamedInTheOrderOfLaunchAndUnitsByTheirNumber) {
  for (const int stage : {2, 3}) {
    SCOPED_TRACE(stage);
    const Traced traced = traceSteps(stage, 1).front();
    std::vector<int> reduced;
    for (const pealZeroSpan_t& span : traced.spans) {
      if (span.kind == pealZeroSpanCollective && span.counter == pealZeroReduceScatter) {
        reduced.push_back(span.index);
      }
    }
    const size_t perStep = reduced.size() / 3;
    ASSERT_GT(perStep, 1u);
    for (size_t i = 0; i < reduced.size(); ++i) {
      const size_t place = i % perStep;
      EXPECT_EQ(reduced[i], static_cast<int>(stage == 3 ? perStep - 1 - place : place));
    }
  }
}

}  // namespace
}  // namespace peal::zero::test

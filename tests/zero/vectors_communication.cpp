// Elements, bytes, calls and steps: C of zero-vectors.json, against the planner and the engine's counters.
#include <gtest/gtest.h>

#include <vector>

#include "tests/zero/vectors.h"

namespace peal::zero::test {
namespace {

pealZeroPlanStage_t rowOf(double parameters, double ranks, int stage, int64_t m = 1, bool reshard = true) {
  pealZeroPlanInput_t input = inputOf(parameters, static_cast<int64_t>(ranks));
  input.microBatches = m;
  input.reshardAfterForward = reshard ? 1 : 0;
  return plan(input).stages[stage];
}

void elementsOfOneMicroBatch(const json& test) {
  ASSERT_EQ(test.at("expected"),
            json({{"ddp", "2P"}, {"z1", "2P"}, {"z2", "2P"}, {"z3", "3P"}, {"z3_no_reshard", "2P"}}));
  forEachRanks([](double N) {
    const double P = kEven;
    const double sent = (N - 1) / N * 2;
    for (int stage = 0; stage <= 2; ++stage) {
      EXPECT_EQ(rowOf(P, N, stage).elements, 2 * P);
      EXPECT_DOUBLE_EQ(rowOf(P, N, stage).bytesSent, 2 * P * sent);
    }
    EXPECT_EQ(rowOf(P, N, 3).elements, 3 * P);
    EXPECT_DOUBLE_EQ(rowOf(P, N, 3).bytesSent, 3 * P * sent);
    EXPECT_EQ(rowOf(P, N, 3, 1, false).elements, 2 * P);
  });
}

void elementsOfManyMicroBatches(const json& test) {
  ASSERT_EQ(test.at("expected"), json({{"ddp", "2P"}, {"z1", "2P"}, {"z2", "(m+1)P"}, {"z3", "3mP"}}));
  for (const int64_t m : {1, 2, 8}) {
    const auto times = static_cast<double>(m);
    EXPECT_EQ(rowOf(kEven, 8, 0, m).elements, 2 * kEven);
    EXPECT_EQ(rowOf(kEven, 8, 1, m).elements, 2 * kEven);
    EXPECT_EQ(rowOf(kEven, 8, 2, m).elements, (times + 1) * kEven);
    EXPECT_EQ(rowOf(kEven, 8, 3, m).elements, 3 * times * kEven);
    EXPECT_EQ(rowOf(kEven, 8, 3, m, false).elements, 2 * times * kEven);
  }
}

// The planner and the engine, whose shape has five units.
void gathersPerLayer(const json& test) {
  const int m = test.at("inputs").at("m").get<int>();
  pealZeroPlanInput_t input = inputOf(kEven, 8);
  input.microBatches = m;
  input.units = 5;
  const pealZeroPlanStage_t row = plan(input).stages[3];
  std::vector<pealZeroCounters_t> counters(2);
  onRanks(2, [&](int rank, pealComm_t comm) {
    pealZeroOptions_t options = defaultOptions();
    options.stage = 3;
    options.microBatches = m;
    Trainer trainer(comm, rank, options, unevenShape());
    trainer.step();
    counters[static_cast<size_t>(rank)] = trainer.engine().counters();
  });
  const auto gathers = test.at("expected").at("all_gathers_per_layer").get<uint64_t>();
  const auto reductions = test.at("expected").at("reduce_scatters_per_layer").get<uint64_t>();
  EXPECT_EQ(row.allGathers, 5 * gathers);
  EXPECT_EQ(row.reduceScatters, 5 * reductions);
  EXPECT_EQ(counters[0].calls[pealZeroAllGather], 5 * gathers);
  EXPECT_EQ(counters[0].calls[pealZeroReduceScatter], 5 * reductions);
}

void ringBytes(const json& test) {
  ASSERT_EQ(test.at("expected"), json({{"rs", "(N-1)/N n"},
                                       {"ag", "(N-1)/N n"},
                                       {"ar", "2(N-1)/N n"},
                                       {"limit", "2n"},
                                       {"steps_each", "N-1"},
                                       {"latency", "2(N-1)alpha"}}));
  forEachRanks([](double N) {
    pealZeroPlanInput_t input = inputOf(kEven, static_cast<int64_t>(N));
    input.buckets = 1;
    input.latencySeconds = 3e-6;
    input.networkBytesPerSecond = 1e10;
    const double n = 2 * kEven;
    const pealZeroPlan_t plans = plan(input);
    EXPECT_DOUBLE_EQ(plans.stages[1].reduceBytesSent, (N - 1) / N * n);
    EXPECT_DOUBLE_EQ(plans.stages[1].gatherBytesSent, (N - 1) / N * n);
    EXPECT_DOUBLE_EQ(plans.stages[0].bytesSent, 2 * (N - 1) / N * n);
    EXPECT_LT(plans.stages[0].bytesSent, 2 * n);
    EXPECT_EQ(static_cast<double>(plans.stages[1].messages), 2 * (N - 1));  // N-1 in each
    EXPECT_NEAR(plans.stages[0].networkSeconds - plans.stages[0].bytesSent / 1e10, 2 * (N - 1) * 3e-6, 1e-12);
  });
}

// What the rings of the library post: a message of X/N bytes in each step, no more and no less.
void ringsOnLinks(int ranks) {
  onRanks(ranks, [ranks](int rank, pealComm_t comm) {
    const auto N = static_cast<size_t>(ranks);
    const size_t elements = 16 * N;
    std::vector<float> values(elements, 1), block(elements / N);
    ASSERT_EQ(pealCommForceAlgorithm(comm, "ring"), pealSuccess) << pealGetLastError(comm);
    ASSERT_EQ(pealAllReduce(values.data(), values.data(), elements, pealFloat32, pealSum, comm, nullptr),
              pealSuccess)
        << pealGetLastError(comm);
    EXPECT_EQ(values, std::vector<float>(elements, static_cast<float>(ranks)));
    ASSERT_EQ(
        pealReduceScatter(values.data(), block.data(), block.size(), pealFloat32, pealSum, comm, nullptr),
        pealSuccess);
    ASSERT_EQ(pealAllGather(block.data(), values.data(), block.size(), pealFloat32, comm, nullptr),
              pealSuccess);
    pealCommStats_t stats{};
    ASSERT_EQ(pealCommGetStats(comm, &stats), pealSuccess);
    const size_t X = elements * sizeof(float);
    for (const auto& [call, steps] : {std::pair<int, size_t>{pealStatAllReduce, 2 * (N - 1)},
                                      {pealStatReduceScatter, N - 1},
                                      {pealStatAllGather, N - 1}}) {
      EXPECT_EQ(stats.messages[call], steps) << ranks << " ranks, rank " << rank << ", call " << call;
      EXPECT_EQ(stats.bytesSent[call], steps * X / N)
          << ranks << " ranks, rank " << rank << ", call " << call;
    }
  });
}

void ringSchedule(const json& test) {
  ASSERT_EQ(test.at("expected"), json({{"step_bytes", "X/N"},
                                       {"steps", "N-1"},
                                       {"per_phase", "(N-1)X/N"},
                                       {"total", "2(N-1)X/N -> 2X"}}));
  forEachRanks([](double N) {
    pealZeroPlanInput_t input = inputOf(kEven, static_cast<int64_t>(N));
    input.buckets = 1;
    const double X = 2 * kEven;
    const pealZeroPlanStage_t row = plan(input).stages[0];
    EXPECT_EQ(static_cast<double>(row.messages), 2 * (N - 1));
    if (N > 1) {
      EXPECT_DOUBLE_EQ(row.bytesSent / static_cast<double>(row.messages), X / N);
    }
    EXPECT_DOUBLE_EQ(row.bytesSent / 2, (N - 1) * X / N);
    EXPECT_DOUBLE_EQ(row.bytesSent, 2 * (N - 1) * X / N);
  });
  for (const int ranks : {2, 3, 4, 5}) {
    ringsOnLinks(ranks);
  }
}

// What an engine sends in one step per rank and parameter, of few parameters: volumes are linear in them.
struct Sent {
  double reduced = 0, gathered = 0, between = 0;  // between shard groups, in elements; the others in bytes
};
Sent sentBy(int ranks, int stage, int group, int microBatches, bool keepsUnits) {
  const Shape shape{{1300, 0}, {700, 1}};
  std::vector<pealZeroCounters_t> counters(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    pealZeroOptions_t options = defaultOptions();
    options.stage = stage;
    options.shardGroup = group;
    options.microBatches = microBatches;
    Trainer trainer(comm, rank, options, shape, keepsUnits ? std::vector<int>{0, 1} : std::vector<int>{});
    trainer.step();
    counters[static_cast<size_t>(rank)] = trainer.engine().counters();
  });
  Sent sent;
  const double each = 2000.0 * ranks;
  for (const pealZeroCounters_t& rank : counters) {
    sent.reduced +=
        static_cast<double>(rank.bytesSent[pealZeroReduceScatter] + rank.bytesSent[pealZeroAllReduce]) / each;
    sent.gathered += static_cast<double>(rank.bytesSent[pealZeroAllGather]) / each;
    sent.between += static_cast<double>(rank.elementsSent[pealZeroReplicas]) / each;
  }
  return sent;
}

void thirteenBillion(const json& test) {
  const json& inputs = test.at("inputs");
  const json& expected = test.at("expected");
  pealZeroPlanInput_t input = inputOf(inputs);
  input.group = 8;
  input.networkBytesPerSecond = inputs.at("W").get<double>();
  input.groupBytesPerSecond = inputs.at("NVL").get<double>();
  const pealZeroPlan_t plans = plan(input);
  expectPrinted(plans.stages[3].bytesSent / kGigabyte, expected.at("z3_GB"));
  expectPrinted(plans.stages[3].networkSeconds, expected.at("z3_s"));
  expectPrinted(plans.stages[2].reduceBytesSent / kGigabyte, expected.at("z2_rs_GB"));
  expectPrinted(plans.stages[2].reduceBytesSent / input.networkBytesPerSecond, expected.at("z2_s"));
  expectPrinted(plans.stages[2].gatherBytesSent / kGigabyte, expected.at("z2_ag_GB"));
  const pealZeroPlanStage_t& hsdp = plans.stages[pealZeroPlanHsdp];
  expectPrinted(hsdp.groupBytesSent / kGigabyte, expected.at("hsdp_nvl_GB"));
  expectPrinted(hsdp.groupSeconds, expected.at("hsdp_nvl_s"));
  expectPrinted(hsdp.bytesSent / kGigabyte, expected.at("hsdp_net_GB"));
  expectPrinted(hsdp.networkSeconds, expected.at("hsdp_net_s"));

  // The engine: per micro-batch, with accumulation; and without reshard, where the second gathering is saved.
  const auto ranks = inputs.at("N").get<int>();
  const double billions = inputs.at("P").get<double>() / kGigabyte;
  for (const int m : {1, 2}) {
    const Sent sharded = sentBy(ranks, 3, 0, m, false);
    expectPrinted((sharded.reduced + sharded.gathered) / m * billions, expected.at("z3_GB"));
    const Sent kept = sentBy(ranks, 3, 0, m, true);
    EXPECT_DOUBLE_EQ(kept.reduced, sharded.reduced);
    EXPECT_DOUBLE_EQ(kept.gathered, sharded.gathered / 2);
    const Sent gradients = sentBy(ranks, 2, 0, m, false);
    expectPrinted(gradients.reduced / m * billions, expected.at("z2_rs_GB"));
    expectPrinted(gradients.gathered * billions, expected.at("z2_ag_GB"));
    const Sent grouped = sentBy(ranks, 3, 8, m, false);
    expectPrinted((grouped.reduced + grouped.gathered) / m * billions, expected.at("hsdp_nvl_GB"));
    // In elements of two bytes: half of the engine's are sums of four. Once a step, whatever m is.
    expectPrinted(2 * grouped.between * billions, expected.at("hsdp_net_GB"));
  }
}

void hybridOfTwoBillion(const json& test) {
  const json& inputs = test.at("inputs");
  const json& expected = test.at("expected");
  const auto group = inputs.at("G").get<int64_t>();
  pealZeroPlanInput_t input = inputOf(inputs.at("P").get<double>(), group * inputs.at("R").get<int64_t>());
  input.group = group;
  input.networkBytesPerSecond = inputs.at("W").get<double>();
  const pealZeroPlan_t plans = plan(input);
  const pealZeroPlanStage_t& hsdp = plans.stages[pealZeroPlanHsdp];
  expectPrinted(2 * static_cast<double>(hsdp.shardElements) / kGigabyte, expected.at("shard_GB"));
  expectPrinted(hsdp.bytesSent / kGigabyte, expected.at("GB"));
  expectPrinted(hsdp.networkSeconds * 1e3, expected.at("ms"));
  expectPrinted(plans.stages[0].bytesSent / kGigabyte, expected.at("ddp64_GB"));
  expectPrinted(plans.stages[0].networkSeconds * 1e3, expected.at("ddp64_ms"));
  const int ranks = static_cast<int>(input.ranks);
  const double billions = inputs.at("P").get<double>() / kGigabyte;
  expectPrinted(2 * sentBy(ranks, 3, static_cast<int>(group), 2, false).between * billions,
                expected.at("GB"));
  expectPrinted(sentBy(ranks, 0, 0, 2, false).reduced * billions, expected.at("ddp64_GB"));
}

void twoUnits(const json& test) {
  const json& expected = test.at("expected");
  const Shape shape{{30, 0}, {21, 1}};
  const auto calls = [&](const std::vector<int>& kept, int counter) {
    uint64_t made = 0;
    onRanks(test.at("inputs").at("ranks").get<int>(), [&](int rank, pealComm_t comm) {
      pealZeroOptions_t options = defaultOptions();
      options.stage = 3;
      Trainer trainer(comm, rank, options, shape, kept);
      trainer.step();
      if (rank == 0) {
        made = trainer.engine().counters().calls[counter];
      }
    });
    return made;
  };
  EXPECT_EQ(calls({}, pealZeroAllGather), expected.at("all_gather").get<uint64_t>());
  EXPECT_EQ(calls({}, pealZeroReduceScatter), expected.at("reduce_scatter").get<uint64_t>());
  const auto kept = expected.at("with reshard_after_forward=False on unit 2").get<uint64_t>();
  EXPECT_EQ(calls({1}, pealZeroAllGather), kept);
  pealZeroPlanInput_t input = inputOf(51, 2);
  input.units = test.at("inputs").at("units").get<uint64_t>();
  EXPECT_EQ(plan(input).stages[3].allGathers, expected.at("all_gather").get<uint64_t>());
  EXPECT_EQ(plan(input).stages[3].reduceScatters, expected.at("reduce_scatter").get<uint64_t>());
  input.keptUnits = 1;
  EXPECT_EQ(plan(input).stages[3].allGathers, kept);
}

// The mean over ranks; the ranks' own numbers differ, as their shards do.
void elementsSentByTen(const json& test) {
  const int ranks = test.at("inputs").at("N").get<int>();
  const double sent = test.at("expected").at("sent").get<double>();
  const pealZeroPlanStage_t row = plan(inputOf(test.at("inputs"))).stages[1];
  EXPECT_DOUBLE_EQ(row.bytesSent / 2, sent);
  std::vector<uint64_t> counted(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, defaultOptions(), {{test.at("inputs").at("P").get<uint64_t>(), 0}});
    trainer.step();
    const pealZeroCounters_t counters = trainer.engine().counters();
    counted[static_cast<size_t>(rank)] =
        counters.elementsSent[pealZeroReduceScatter] + counters.elementsSent[pealZeroAllGather];
  });
  uint64_t all = 0;
  for (const uint64_t rank : counted) {
    all += rank;
  }
  EXPECT_DOUBLE_EQ(static_cast<double>(all) / ranks, sent);
}

}  // namespace

Handlers communicationHandlers() {
  return {
      {"C01", elementsOfOneMicroBatch},
      {"C02", elementsOfManyMicroBatches},
      {"C03", gathersPerLayer},
      {"C04", ringBytes},
      {"C05", ringSchedule},
      {"C06", thirteenBillion},
      {"C07", hybridOfTwoBillion},
      {"C08", twoUnits},
      {"C09", elementsSentByTen},
  };
}

}  // namespace peal::zero::test

// What training leaves, for tests that compare it bit for bit over stages, buckets and ranks' copies.
#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "tests/zero/ranks.h"

namespace peal::zero::test {

struct TrainedState {
  std::vector<float> master, moment1, moment2, weight;
  std::vector<double> norms;  // of each step
  bool operator==(const TrainedState&) const = default;
};

struct Training {
  Shape shape;
  std::vector<pealZeroGroup_t> groups;
  std::vector<int> keptUnits = {};
  int steps = 3;
  double learningRate = 1e-2;
};

// Trains on so many ranks, which all must end with the same.
inline TrainedState trainedState(int ranks, const pealZeroOptions_t& options, const Training& training) {
  std::vector<TrainedState> states(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, training.shape, training.keptUnits, training.groups);
    TrainedState& state = states[static_cast<size_t>(rank)];
    for (int step = 0; step < training.steps; ++step) {
      state.norms.push_back(trainer.step(training.learningRate).gradientNorm);
    }
    state.master = trainer.read(pealZeroMaster);
    state.moment1 = trainer.read(pealZeroMoment1);
    state.moment2 = trainer.read(pealZeroMoment2);
    state.weight = trainer.read(pealZeroWeight);
  });
  for (const TrainedState& state : states) {
    EXPECT_TRUE(state == states[0]);
  }
  return states[0];
}

}  // namespace peal::zero::test

// That clang's thread sanitizer sees the optimizer's kernels: a race that is made on purpose is reported. The
// other tests of this program are those of AdamW and of the fused step, in which it must report none.
#include <gtest/gtest.h>

#include <cstdlib>

#include "lib/executor/cuda/kernels.h"
#include "tests/cuda/kernel_ranks.h"
#include "tests/cudasim/core/run.h"

namespace peal::cuda::test {
namespace {

constexpr int kRaceStatus = 99;  // of TSAN_OPTIONS
constexpr size_t kCount = 64;    // of each rank's block

// A rank's arrays.
struct Optimizer {
  explicit Optimizer(int rank)
      : gradient(rank, 2 * 2 * kCount),
        weight(rank, 2 * 2 * kCount),
        master(rank, 4 * kCount),
        moment1(rank, 4 * kCount),
        moment2(rank, 4 * kCount),
        control(sizeof(pealAdamwControl_t), rank) {
    *control.host<pealAdamwControl_t>() = {0, 1e-2, 1, 0, 0};
  }
  pealAdamw_t state(const Array& masters) const {
    const auto floats = [](const Array& array) { return reinterpret_cast<float*>(array.device()); };
    return {0.9,
            0.95,
            1e-8,
            floats(masters),
            floats(moment1),
            floats(moment2),
            kCount,
            nullptr,
            0,
            0,
            0,
            0,
            control.device<pealAdamwControl_t>(),
            nullptr};
  }
  static const uint16_t* words(const Array& array) {
    return reinterpret_cast<const uint16_t*>(array.device());
  }

  Array gradient, weight, master, moment1, moment2;
  cudasim::DeviceBuffer control;
};

enum class Masters { Own, Shared };

// Two launches of AdamW that nothing orders.
void stepTwice(Masters masters) {
  const Optimizer one(0), other(0);
  const Optimizer* const of[] = {&one, &other};
  std::vector<cudasim::Grid> grids(2);
  for (size_t i = 0; i < 2; ++i) {
    AdamwStepArgs args{of[i]->state(masters == Masters::Own ? of[i]->master : one.master),
                       Optimizer::words(of[i]->gradient),
                       const_cast<uint16_t*>(Optimizer::words(of[i]->weight))};
    grids[i].grid = dim3(1);
    grids[i].block = dim3(64);
    grids[i].body = [args] { adamwKernel()(args); };
    grids[i].name = "adamw";
  }
  cudasim::Grid* both[] = {&grids[0], &grids[1]};
  EXPECT_TRUE(cudasim::run(both, cudasim::World::Alone, cudasim::OnTrap::Return).ok());
}

// The fused step of two ranks.
void stepTogether(Masters masters) {
  KernelRanks ranks({.ranks = 2});
  const Optimizer zero(0), one(1);
  const Optimizer* const of[] = {&zero, &one};
  std::vector<std::function<void()>> kernels;
  for (int rank = 0; rank < 2; ++rank) {
    const Optimizer& own = *of[rank];
    ReduceAdamwGatherArgs args{};
    args.collective.comm = ranks.view(rank);
    args.collective.digest.collective = args.collective.kind = pealStatAllReduce;
    args.collective.digest.type = pealBfloat16;
    args.collective.algorithm = Algorithm::TwoShot;
    args.collective.in = own.gradient.device();
    args.collective.out = own.weight.device();
    args.collective.total = 2 * kCount;
    args.collective.parts = 2;
    args.collective.hasStarts = 1;
    args.collective.starts[1] = kCount;
    args.collective.starts[2] = 2 * kCount;
    args.collective.chunkCount = kCount;
    args.state = own.state(masters == Masters::Own ? own.master : zero.master);
    kernels.emplace_back([args] { reduceAdamwGatherKernel()(args); });
  }
  EXPECT_EQ(ranks.complaint(ranks.run(kernels)), "");
}

void expectRace(void (*step)(Masters)) {
  EXPECT_EXIT(
      {
        step(Masters::Shared);
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(kRaceStatus), "data race");
}

TEST(OptimizerRaces, NoneWhereEachHasItsOwnMasters) {
  stepTwice(Masters::Own);
  stepTogether(Masters::Own);
}
TEST(OptimizerRaces, LaunchesOverTheSameMasters) { expectRace(stepTwice); }
TEST(OptimizerRaces, RanksThatShareMasters) { expectRace(stepTogether); }

}  // namespace
}  // namespace peal::cuda::test

// Loading as the files see it, into states of the test's making: which shares ranks have, and what fails on
// one of them alone. checkpoint_test.cpp loads into engines.
#include "lib/zero/checkpoint/load.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/zero/checkpoint/crc32c.h"
#include "lib/zero/checkpoint/save.h"
#include "tests/support/scratch_folder.h"

namespace peal::zero::checkpoint {
namespace {

constexpr uint64_t kElements = 1000;

// One parameter, of which a rank holds some stretches.
class HeldState final : public State {
 public:
  explicit HeldState(std::vector<Stretch> stretches) : stretches_(std::move(stretches)) {
    for (const Stream stream : {Stream::Master, Stream::Moment1, Stream::Moment2, Stream::Weight}) {
      values_[stream].resize(kElements * elementBytes(stream));
    }
  }
  // Whole numbers below 128: their bf16 is the upper half.
  void fill() {
    for (uint64_t i = 0; i < kElements; ++i) {
      const auto value = static_cast<float>(i % 128);
      for (const Stream stream : {Stream::Master, Stream::Moment1, Stream::Moment2}) {
        std::memcpy(at(stream, i), &value, sizeof value);
      }
      std::memcpy(at(Stream::Weight, i), reinterpret_cast<const std::byte*>(&value) + 2, 2);
    }
  }
  std::vector<ParameterShape> parameters() const override {
    return {{"w", kElements, {kElements}, Kind::Trained, 0, WeightType::Bf16}};
  }
  std::vector<AdamwNumbers> groups() const override { return {{0.9, 0.999, 1e-8, 0.1}}; }
  uint64_t step() const override { return 3; }
  Conversion conversion() const override { return Conversion::Refused; }
  Conversion optimizerConversion() const override { return Conversion::Refused; }
  std::vector<Stretch> saved() const override { return stretches_; }
  std::vector<Stretch> held() const override {
    if (heldFailsNext) {
      throw std::bad_alloc();
    }
    return stretches_;
  }
  Result<void> fetch(Stream stream, const Stretch& stretch, void* to) const override {
    std::memcpy(to, values_.at(stream).data() + stretch.begin * elementBytes(stream),
                stretch.elements * elementBytes(stream));
    return {};
  }
  Result<void> store(Stream stream, const Stretch& stretch, const void* from) override {
    std::memcpy(at(stream, stretch.begin), from, stretch.elements * elementBytes(stream));
    heldFailsNext = heldFails;
    return {};
  }
  Result<void> stored() override {
    return storedFails ? Error{pealUnhandledCudaError, "GPU 5 is lost"} : Result<void>();
  }
  Result<void> restored(uint64_t step) override {
    restoredStep = step;
    return {};
  }

  bool heldFails = false, heldFailsNext = false;  // once something was stored
  bool storedFails = false;
  uint64_t restoredStep = 0;

 private:
  std::byte* at(Stream stream, uint64_t element) {
    return values_[stream].data() + element * elementBytes(stream);
  }

  const std::vector<Stretch> stretches_;
  std::map<Stream, std::vector<std::byte>> values_;
};

void onRanks(int ranks, const std::function<void(int rank, Collectives& collectives)>& body) {
  std::vector<pealComm_t> comms(static_cast<size_t>(ranks), nullptr);
  ASSERT_EQ(pealCommInitAll(comms.data(), ranks, nullptr), pealSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      pealComm_t comm = comms[static_cast<size_t>(rank)];
      {
        Result<std::unique_ptr<Collectives>> collectives = Collectives::make(comm, 0);
        ASSERT_TRUE(collectives) << collectives.error().message;
        body(rank, **collectives);
      }
      EXPECT_EQ(pealCommDestroy(comm), pealSuccess);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void saveWhole(const std::string& path) {
  onRanks(1, [&](int /*rank*/, Collectives& collectives) {
    HeldState state({{0, 0, kElements}});
    state.fill();
    Result<std::unique_ptr<Save>> save = Save::begin(collectives, state, path, {}, SaveMode::Synchronous, {});
    ASSERT_TRUE(save) << save.error().message;
    const Result<void> saved = (*save)->finish();
    ASSERT_TRUE(saved) << saved.error().message;
  });
}

// Two tables of stretches that a CRC-32 takes for the same.
std::pair<std::vector<Stretch>, std::vector<Stretch>> collidingTables() {
  std::mt19937 random(1);
  std::unordered_map<uint32_t, std::vector<Stretch>> seen;
  const auto below = [&](uint64_t end) { return random() % end; };
  for (int tried = 0; tried < 1'000'000; ++tried) {
    const uint64_t first = below(kElements / 2), second = kElements / 2 + below(kElements / 2);
    const std::vector<Stretch> table{{0, first, 1 + below(kElements / 2 - first)},
                                     {0, second, 1 + below(kElements - second)}};
    const auto [found, isNew] = seen.emplace(crc32c(0, table.data(), table.size() * sizeof(Stretch)), table);
    if (!isNew && found->second.front().begin != first) {
      return {found->second, table};
    }
  }
  ADD_FAILURE() << "no two of them";
  return {};
}

TEST(Load, DifferentSharesAreNotComparedWhateverTheirChecksums) {
  const auto [first, second] = collidingTables();
  ASSERT_FALSE(first.empty());
  const peal::test::ScratchFolder folder("peal-load-");
  saveWhole(folder / "a");
  onRanks(2, [&, a = first, b = second](int rank, Collectives& collectives) {
    HeldState state(rank == 0 ? a : b);
    Spoiled spoiled = Spoiled::Yes;
    const Result<void> loaded = load(collectives, state, folder / "a", {}, spoiled);
    EXPECT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(spoiled, Spoiled::No);
    EXPECT_EQ(state.restoredStep, 3U);
  });
}

// What fails on one rank after it has stored all is told to the others before they go on.
TEST(Load, WhatFailsBehindTheLastValueIsOfAllRanks) {
  const peal::test::ScratchFolder folder("peal-load-");
  saveWhole(folder / "a");
  for (const bool isMemory : {true, false}) {
    onRanks(3, [&](int rank, Collectives& collectives) {
      HeldState state({{0, static_cast<uint64_t>(rank) * 10, 10}});
      (isMemory ? state.heldFails : state.storedFails) = rank == 1;
      Spoiled spoiled = Spoiled::No;
      const Result<void> loaded = load(collectives, state, folder / "a", {}, spoiled);
      ASSERT_FALSE(loaded);
      const std::string why = isMemory ? "out of memory for a checkpoint's tables" : "GPU 5 is lost";
      EXPECT_EQ(loaded.error().message, rank == 1 ? why : "rank 1: " + why);
      EXPECT_EQ(spoiled, Spoiled::Yes);
      EXPECT_EQ(state.restoredStep, 0U) << "the ranks are in step: nobody waits in it";
    });
  }
}

}  // namespace
}  // namespace peal::zero::checkpoint

// What the tests of checkpoints share: a directory, options, the state of a run, and failures.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/scratch_folder.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {

namespace fs = std::filesystem;

class CheckpointDirectory : public peal::test::ScratchFolder {
 public:
  CheckpointDirectory() : ScratchFolder("peal-checkpoint-") {}
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path())) {
      found.push_back(entry.path().filename().string());
    }
    return found;
  }
};

inline pealZeroOptions_t checkpointOptions(int stage, size_t bucketBytes = 100) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.bucketBytes = bucketBytes;
  options.clipNorm = 0.5;
  options.weightDecay = 0.1;
  return options;
}

// All that a run depends on.
inline std::vector<std::vector<float>> stateOf(Trainer& trainer) {
  std::vector<std::vector<float>> state;
  for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2, pealZeroWeight}) {
    state.push_back(trainer.read(tensor));
  }
  return state;
}

inline bool sameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return a.size() == b.size();
}

inline std::span<const std::byte> bytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

template <class Body>
std::string failureOf(pealResult_t expected, const Body& body) {
  try {
    body();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), expected) << failure.what();
    return failure.what();
  }
  ADD_FAILURE() << "did not fail";
  return "";
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// Saves a model after two steps.
inline void saveModel(const std::string& path, int ranks, int stage, const Shape& shape = unevenShape()) {
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(stage), shape);
    trainer.step();
    trainer.step();
    trainer.engine().save(path, bytesOf("seed 7"));
  });
}

}  // namespace peal::zero::test

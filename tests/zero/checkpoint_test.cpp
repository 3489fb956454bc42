// Checkpoints on ranks that are threads: saved on some number of ranks and loaded on another, continued,
// saved beside training, and refused where they are damaged, foreign or of another model.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

namespace fs = std::filesystem;

// A directory of the test, removed at its end.
class CheckpointDirectory {
 public:
  CheckpointDirectory() {
    std::string name = (fs::temp_directory_path() / "peal-checkpoint-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr) << name;
    path_ = name;
  }
  ~CheckpointDirectory() { fs::remove_all(path_); }
  CheckpointDirectory(const CheckpointDirectory&) = delete;
  CheckpointDirectory& operator=(const CheckpointDirectory&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path_)) {
      found.push_back(entry.path().filename().string());
    }
    return found;
  }

 private:
  fs::path path_;
};

pealZeroOptions_t checkpointOptions(int stage, size_t bucketBytes = 100) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.bucketBytes = bucketBytes;
  options.clipNorm = 0.5;
  options.weightDecay = 0.1;
  return options;
}

// All that a run depends on.
std::vector<std::vector<float>> stateOf(Trainer& trainer) {
  std::vector<std::vector<float>> state;
  for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2, pealZeroWeight}) {
    state.push_back(trainer.read(tensor));
  }
  return state;
}

bool sameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return a.size() == b.size();
}

std::span<const std::byte> bytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

template <class Body>
std::string failureOf(pealResult_t expected, const Body& body) {
  try {
    body();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code, expected) << failure.what();
    return failure.what();
  }
  ADD_FAILURE() << "did not fail";
  return "";
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// Saves a model after two steps.
void saveModel(const std::string& path, int ranks, int stage, const Shape& shape = unevenShape()) {
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(stage), shape);
    trainer.step();
    trainer.step();
    trainer.engine().save(path, bytesOf("seed 7"));
  });
}

// ---- round trips ------------------------------------------------------------------------------------------

TEST(Checkpoint, TheSameBytesOnAnyNumberOfRanksAtAnyStageAndBucketSize) {
  struct Stop {
    int ranks, stage;
    size_t bucketBytes;
  };
  const std::vector<std::vector<Stop>> journeys{
      {{4, 1, 100}, {3, 3, 2}, {5, 2, 402}, {1, 0, 100}, {4, 2, 1 << 20}},
      {{4, 3, 100}, {3, 0, 2}, {5, 1, 1 << 20}, {1, 3, 100}, {4, 0, 402}},
  };
  for (const auto& journey : journeys) {
    const CheckpointDirectory directory;
    std::vector<std::vector<float>> expected;
    for (size_t stop = 0; stop < journey.size(); ++stop) {
      const Stop& here = journey[stop];
      onRanks(here.ranks, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, checkpointOptions(here.stage, here.bucketBytes), unevenShape());
        if (stop == 0) {
          trainer.step();
          trainer.step();
        } else {
          trainer.engine().load(directory / fmt::format("stop{}", stop - 1));
        }
        const auto state = stateOf(trainer);
        if (stop == 0 && rank == 0) {
          expected = state;
        }
        if (stop > 0) {
          EXPECT_TRUE(sameBits(state, expected)) << "stop " << stop << ", rank " << rank;
        }
        trainer.engine().save(directory / fmt::format("stop{}", stop));
      });
    }
    EXPECT_EQ(directory.names().size(), journey.size());  // nothing else is left
  }
}

// Several blocks in each stream, and ranges that end inside blocks.
TEST(Checkpoint, LargeParametersCrossBlocks) {
  const Shape shape{{300'007, 0}, {70'001, 1}, {0, 1}, {70'001, 1, pealZeroNoDecay}, {200'000, 2}, {3, 3}};
  const CheckpointDirectory directory;
  std::vector<std::vector<float>> expected;
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(2, 1 << 18), shape);
    trainer.step();
    trainer.engine().save(directory / "a");
    const auto state = stateOf(trainer);
    if (rank == 0) {
      expected = state;
    }
  });
  onRanks(3, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(3), shape);
    trainer.engine().load(directory / "a");
    EXPECT_TRUE(sameBits(stateOf(trainer), expected)) << rank;
  });
  const Checkpoint checkpoint(directory / "a");
  std::vector<float> tail(100'000);
  checkpoint.read(0, pealZeroMaster, 200'007, tail);
  EXPECT_EQ(std::memcmp(tail.data(), expected[0].data() + 200'007, tail.size() * sizeof(float)), 0);
}

// Fewer elements than ranks: some have no file.
TEST(Checkpoint, FewerElementsThanRanks) {
  const Shape shape{{2, 0}, {0, 0}, {1, 1}};
  const CheckpointDirectory directory;
  std::vector<std::vector<float>> expected;
  onRanks(5, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(3), shape);
    trainer.step();
    trainer.engine().save(directory / "a");
    const auto state = stateOf(trainer);
    if (rank == 0) {
      expected = state;
    }
  });
  EXPECT_LE(Checkpoint(directory / "a").info().files, 3u);
  onRanks(4, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(1), shape);
    trainer.engine().load(directory / "a");
    EXPECT_TRUE(sameBits(stateOf(trainer), expected)) << rank;
  });
}

// Frozen parameters have weights only, tied ones no values of their own; both cross ranks and stages too.
TEST(Checkpoint, FrozenAndTiedParameters) {
  const auto shapeWith = [](bool frozen, int tiedTo) {
    Shape shape{{37, 0}, {90, 0}, {37, 0}, {51, 1}, {8, 2}, {19, 2}};
    shape[1].frozen = shape[4].frozen = frozen;
    shape[2].tiedTo = tiedTo;
    return shape;
  };
  const CheckpointDirectory directory;
  std::vector<std::vector<float>> expected;
  const std::vector<std::pair<int, int>> stops{{4, 3}, {3, 1}, {5, 3}, {1, 0}, {3, 2}};  // ranks, stage
  for (size_t stop = 0; stop < stops.size(); ++stop) {
    onRanks(stops[stop].first, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, checkpointOptions(stops[stop].second), shapeWith(true, 0));
      if (stop == 0) {
        trainer.step();
      } else {
        trainer.engine().load(directory / fmt::format("stop{}", stop - 1));
      }
      const auto state = stateOf(trainer);
      if (stop == 0 && rank == 0) {
        expected = state;
      }
      if (stop > 0) {
        EXPECT_TRUE(sameBits(state, expected)) << "stop " << stop << ", rank " << rank;
      }
      trainer.engine().saveBegin(directory / fmt::format("stop{}", stop));
      trainer.step();
      trainer.engine().saveWait();
    });
  }
  const Checkpoint checkpoint(directory / "stop4");
  EXPECT_EQ(checkpoint.parameter(1).frozen, 1);
  EXPECT_STREQ(checkpoint.parameter(2).tiedTo, "p0");
  std::vector<float> own(37), tied(37), frozen(90);
  checkpoint.read(0, pealZeroMaster, 0, own);
  checkpoint.read(2, pealZeroMaster, 0, tied);
  EXPECT_EQ(own, tied);
  checkpoint.read(1, pealZeroWeight, 0, frozen);
  EXPECT_EQ(frozen[89], widen(roundToBf16(initialValue(1, 89))));
  EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { checkpoint.read(1, pealZeroMaster, 0, frozen); }),
                  "frozen");

  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trained(comm, rank, checkpointOptions(2), shapeWith(false, 0));
    EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { trained.engine().load(directory / "stop4"); }),
                    "\"p1\" is frozen in");
  });
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer untied(comm, rank, checkpointOptions(2), shapeWith(true, -1));
    EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { untied.engine().load(directory / "stop4"); }),
                    "\"p2\" is tied to \"p0\" in");
  });
}

enum class Rounding { Nearest, Remainder, Stochastic };

pealZeroOptions_t roundingOptions(int stage, Rounding rounding, size_t bucketBytes = 100) {
  pealZeroOptions_t options = checkpointOptions(stage, bucketBytes);
  options.master = rounding == Rounding::Remainder ? pealZeroMasterRemainder : pealZeroMasterFp32;
  options.stochasticRounding = rounding == Rounding::Stochastic ? 1 : 0;
  options.seed = 5;
  return options;
}

TEST(Checkpoint, ContinuingGivesTheBitsOfNotHavingStopped) {
  for (const Rounding rounding : {Rounding::Nearest, Rounding::Remainder, Rounding::Stochastic}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const CheckpointDirectory directory;
      std::vector<std::vector<float>> expected;
      onRanks(3, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, roundingOptions(stage, rounding), unevenShape(), {1});
        trainer.step();
        trainer.step();
        trainer.engine().saveBegin(directory / "a");
        trainer.step();
        trainer.engine().saveWait();
        trainer.step();
        const auto state = stateOf(trainer);
        if (rank == 0) {
          expected = state;
        }
      });
      EXPECT_EQ(Checkpoint(directory / "a").info().hasWeights, rounding == Rounding::Stochastic ? 1 : 0);
      onRanks(3, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, roundingOptions(3 - stage, rounding, 402), unevenShape(), {1});
        trainer.step();  // what was before is forgotten, gathered units too
        trainer.engine().load(directory / "a");
        trainer.continueAfter(2);
        trainer.step();
        EXPECT_EQ(trainer.step().step, 4u);
        EXPECT_TRUE(sameBits(stateOf(trainer), expected)) << "stage " << stage << ", rank " << rank;
      });
    }
  }
}

// Masters are what is saved: kept otherwise, they are the same.
TEST(Checkpoint, MastersCrossTheWaysToKeepThem) {
  const CheckpointDirectory directory;
  std::vector<float> expected;
  for (const Rounding rounding : {Rounding::Stochastic, Rounding::Remainder, Rounding::Nearest}) {
    onRanks(2, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, roundingOptions(2, rounding), unevenShape());
      if (rounding == Rounding::Stochastic) {
        trainer.step();
      } else {
        trainer.engine().load(directory / "a");
      }
      const std::vector<float> master = trainer.read(pealZeroMaster);
      if (rounding == Rounding::Stochastic && rank == 0) {
        expected = master;
      }
      if (rounding != Rounding::Stochastic) {
        EXPECT_EQ(master, expected) << rank;
      }
      trainer.engine().save(directory / "a");
    });
  }
}

TEST(Checkpoint, AsynchronousSaveHasTheStateOfItsBeginning) {
  for (int stage = 0; stage <= 3; ++stage) {
    const CheckpointDirectory directory;
    std::vector<std::vector<float>> expected;
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, checkpointOptions(stage), unevenShape());
      trainer.step();
      const auto state = stateOf(trainer);
      if (rank == 0) {
        expected = state;
      }
      trainer.engine().saveBegin(directory / "a", bytesOf("x"));
      EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { trainer.engine().saveBegin(directory / "b"); }),
                      "in flight");
      trainer.step();
      trainer.step();
      EXPECT_FALSE(fs::exists(directory / "a"));
      trainer.engine().saveWait();
      EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { trainer.engine().saveWait(); }), "no save");
      trainer.engine().load(directory / "a");
      EXPECT_TRUE(sameBits(stateOf(trainer), expected)) << "stage " << stage << ", rank " << rank;
    });
    EXPECT_EQ(directory.names(), std::vector<std::string>{"a"});
  }
}

TEST(Checkpoint, AnEngineDestroyedWithASaveInFlightLeavesNothing) {
  const CheckpointDirectory directory;
  onRanks(3, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(2), unevenShape());
    trainer.engine().saveBegin(directory / "a", bytesOf("x"));
  });
  EXPECT_TRUE(directory.names().empty());
}

// ---- the directory ----------------------------------------------------------------------------------------

TEST(Checkpoint, ReplacesACheckpointAndNothingElse) {
  const CheckpointDirectory directory;
  fs::create_directory(directory / "mine");
  std::ofstream(directory / "mine/notes") << "precious";
  std::ofstream(directory / "file") << "precious";
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(2), unevenShape());
    trainer.engine().save(directory / "deep/er/a/");
    trainer.step();
    trainer.engine().save(directory / "deep/er/a");
    for (const char* name : {"mine", "file"}) {
      const std::string why = failureOf(rank == 0 ? pealInvalidArgument : pealRemoteError,
                                        [&] { trainer.engine().save(directory / name); });
      EXPECT_CONTAINS(why, name);
      EXPECT_CONTAINS(why, "replaces checkpoints only");
    }
    EXPECT_CONTAINS(
        failureOf(pealInvalidUsage, [&] { trainer.engine().save(directory / (rank == 0 ? "x" : "y")); }),
        "another path");
  });
  EXPECT_EQ(Checkpoint(directory / "deep/er/a").info().step, 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory / "deep/er"), fs::directory_iterator()), 1);
  EXPECT_TRUE(fs::exists(directory / "mine/notes"));
  EXPECT_EQ(directory.names().size(), 3u);
}

TEST(Checkpoint, TheNextSaveRemovesLeftoversAndNothingElse) {
  const CheckpointDirectory directory;
  fs::create_directory(directory / "old.saving-0123456789abcdef");
  std::ofstream(directory / "old.saving-0123456789abcdef/part-00000.bin") << "half";
  fs::create_directory(directory / "my.saving-plans");
  saveModel(directory / "a", 2, 1);
  EXPECT_FALSE(fs::exists(directory / "old.saving-0123456789abcdef"));
  EXPECT_TRUE(fs::exists(directory / "my.saving-plans"));
}

TEST(Checkpoint, TheLatestIsTheOneWithTheMostSteps) {
  const CheckpointDirectory directory;
  EXPECT_EQ(latestCheckpoint(directory / "."), "");
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(2), unevenShape());
    for (const char* name : {"z", "m", "b"}) {
      trainer.step();
      trainer.engine().save(directory / name, bytesOf("user"));
    }
  });
  EXPECT_TRUE(latestCheckpoint(directory / ".").ends_with("/b"));
  fs::remove(directory / "b/user.bin");
  EXPECT_TRUE(latestCheckpoint(directory / ".").ends_with("/m"));
  fs::resize_file(directory / "m/part-00001.bin", 100);
  EXPECT_TRUE(latestCheckpoint(directory / ".").ends_with("/z"));
  EXPECT_CONTAINS(failureOf(pealSystemError, [&] { latestCheckpoint(directory / "none"); }), "none");
}

// ---- refusals ---------------------------------------------------------------------------------------------

// Loads with two ranks, which must be refused on both, with the file in the sentence; the engine goes on
// unchanged.
std::string refusalOf(const std::string& path, const std::string& file) {
  std::string sentence;
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(2), unevenShape());
    trainer.step();
    const auto before = stateOf(trainer);
    try {
      trainer.engine().load(path);
      ADD_FAILURE() << file << " was not refused";
    } catch (const Failure& failure) {
      EXPECT_CONTAINS(std::string(failure.what()), file);
      if (rank == 0) {
        sentence = failure.what();
      }
    }
    EXPECT_TRUE(sameBits(stateOf(trainer), before)) << file;
    EXPECT_EQ(trainer.step().step, 2u);
  });
  return sentence;
}

void flipByte(const std::string& file, uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(static_cast<char>(byte ^ 0x10));
  ASSERT_TRUE(stream.good()) << file << " " << offset;
}

// Every byte, by reading all of the checkpoint without an engine.
void readEverything(const std::string& path) {
  const Checkpoint checkpoint(path);
  (void)checkpoint.userData();
  for (uint64_t i = 0; i < checkpoint.info().parameters; ++i) {
    std::vector<float> values(checkpoint.parameter(i).elements);
    for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2}) {
      checkpoint.read(i, tensor, 0, values);
    }
  }
}

TEST(Damage, EveryFlippedByteIsFoundWithFileAndOffset) {
  const CheckpointDirectory directory;
  saveModel(directory / "a", 2, 2, {{9, 0}, {5, 1}});
  readEverything(directory / "a");
  for (const char* name : {"manifest.txt", "part-00000.bin", "part-00001.bin", "user.bin"}) {
    const std::string file = directory / (std::string("a/") + name);
    const uint64_t size = fs::file_size(file);
    for (uint64_t offset = 0; offset < size; ++offset) {
      flipByte(file, offset);
      const std::string why = failureOf(pealInvalidArgument, [&] { readEverything(directory / "a"); });
      EXPECT_CONTAINS(why, name);
      EXPECT_CONTAINS(why, "offset") << offset;
      flipByte(file, offset);
    }
  }
  readEverything(directory / "a");
}

TEST(Damage, EveryTruncationIsFoundWithFileAndOffset) {
  const CheckpointDirectory directory;
  saveModel(directory / "a", 2, 2, {{9, 0}, {5, 1}});
  for (const char* name : {"manifest.txt", "part-00000.bin", "part-00001.bin", "user.bin"}) {
    const std::string file = directory / (std::string("a/") + name);
    std::ifstream stream(file, std::ios::binary);
    const std::string whole((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    for (size_t size = 0; size < whole.size(); ++size) {
      fs::resize_file(file, size);
      const std::string why = failureOf(pealInvalidArgument, [&] { readEverything(directory / "a"); });
      EXPECT_CONTAINS(why, name);
      EXPECT_CONTAINS(why, "offset") << size;
      std::ofstream(file, std::ios::binary) << whole;
    }
    std::ofstream(file, std::ios::binary) << whole << '\0';
    failureOf(pealInvalidArgument, [&] { readEverything(directory / "a"); });
    std::ofstream(file, std::ios::binary) << whole;
  }
}

TEST(Damage, IsRefusedByAllRanksAndChangesNothing) {
  const CheckpointDirectory directory;
  saveModel(directory / "a", 3, 2);
  const std::string part = directory / "a/part-00001.bin";
  const uint64_t size = fs::file_size(part);
  for (const uint64_t offset : {uint64_t{3}, uint64_t{70}, size - 5, size / 2}) {
    flipByte(part, offset);
    EXPECT_CONTAINS(refusalOf(directory / "a", "part-00001.bin"), "offset");
    flipByte(part, offset);
  }
  flipByte(directory / "a/manifest.txt", 40);
  EXPECT_CONTAINS(refusalOf(directory / "a", "manifest.txt"), "offset");
  flipByte(directory / "a/manifest.txt", 40);
  fs::rename(part, part + ".gone");
  EXPECT_CONTAINS(refusalOf(directory / "a", "part-00001.bin"), "No such file");
  fs::copy_file(directory / "a/part-00000.bin", part);
  refusalOf(directory / "a", "part-00001.bin");
  refusalOf(directory / "none", "none/manifest.txt");
}

TEST(Damage, APartOfAnotherCheckpointOfTheSameModelIsForeign) {
  const CheckpointDirectory directory;
  saveModel(directory / "a", 2, 2);
  saveModel(directory / "b", 2, 2);
  fs::copy_file(directory / "b/part-00001.bin", directory / "a/part-00001.bin",
                fs::copy_options::overwrite_existing);
  EXPECT_CONTAINS(refusalOf(directory / "a", "part-00001.bin"), "foreign");
}

TEST(Refusals, AnotherModelIsRefusedWithWhatDiffers) {
  const CheckpointDirectory directory;
  saveModel(directory / "a", 2, 1);
  struct Case {
    Shape shape;
    double beta1, weightDecay;
    const char* text;
  };
  Shape larger = unevenShape();
  ++larger[5].elements;
  Shape shorter = unevenShape();
  shorter.pop_back();
  Shape longer = unevenShape();
  longer.push_back({4, 4});
  for (const Case& other : {Case{larger, 0.9, 0.1, "\"p5\" has 129 elements"},
                            Case{shorter, 0.9, 0.1, "\"p10\" of 2 elements that the engine has not"},
                            Case{longer, 0.9, 0.1, "\"p11\" of 4 elements that"},
                            Case{unevenShape(), 0.8, 0.1, "beta1 0.9, the engine has 0.8"},
                            Case{unevenShape(), 0.9, 0.2, "weightDecay 0.1, the engine has 0.2"}}) {
    onRanks(2, [&](int rank, pealComm_t comm) {
      pealZeroOptions_t options = checkpointOptions(2);
      options.beta1 = other.beta1;
      options.weightDecay = other.weightDecay;
      Trainer trainer(comm, rank, options, other.shape);
      EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { trainer.engine().load(directory / "a"); }),
                      other.text);
      EXPECT_EQ(trainer.step().step, 1u);
    });
  }
}

TEST(Refusals, InTheMiddleOfAStep) {
  const CheckpointDirectory directory;
  saveModel(directory / "a", 2, 1);
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(2), unevenShape());
    trainer.engine().enter(0, pealZeroForward);
    EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { trainer.engine().save(directory / "b"); }),
                    "between steps");
    EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { trainer.engine().load(directory / "a"); }),
                    "between steps");
    trainer.engine().leave(0, pealZeroForward);
    trainer.step();
  });
  EXPECT_EQ(directory.names(), std::vector<std::string>{"a"});
}

// One rank alone finds a file missing or has no room: an error everywhere, and the engine goes on.
TEST(Refusals, OneRanksFailureIsOfAll) {
  const CheckpointDirectory directory;
  saveModel(directory / "a", 2, 1);
  onRanks(3, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(2), unevenShape());
    const std::string why = failureOf(rank == 1 ? pealSystemError : pealRemoteError, [&] {
      trainer.engine().load(directory / (rank == 1 ? "elsewhere" : "a"));
    });
    EXPECT_CONTAINS(why, "elsewhere/manifest.txt");
    if (rank != 1) {
      EXPECT_CONTAINS(why, "rank 1");
    }
    trainer.engine().load(directory / "a");
    EXPECT_EQ(trainer.step().step, 3u);
  });
}

// ---- reading without an engine ----------------------------------------------------------------------------

TEST(Reading, WhatWasSavedIsThere) {
  const CheckpointDirectory directory;
  saveModel(directory / "a", 3, 3);
  const Checkpoint checkpoint(directory / "a");
  const pealZeroCheckpointInfo_t info = checkpoint.info();
  EXPECT_EQ(info.step, 2u);
  EXPECT_EQ(info.parameters, unevenShape().size());
  EXPECT_EQ(info.beta2, 0.999);
  EXPECT_EQ(info.weightDecay, 0.1);
  EXPECT_EQ(info.hasWeights, 0);
  EXPECT_EQ(checkpoint.userData(), "seed 7");
  EXPECT_STREQ(checkpoint.parameter(5).name, "p5");
  EXPECT_EQ(checkpoint.parameter(5).elements, 129u);
  std::vector<float> master(129), weight(129);
  checkpoint.read(5, pealZeroMaster, 0, master);
  checkpoint.read(5, pealZeroWeight, 0, weight);
  for (size_t i = 0; i < master.size(); ++i) {
    EXPECT_EQ(weight[i], widen(roundToBf16(master[i])));
  }
  EXPECT_CONTAINS(failureOf(pealInvalidArgument, [&] { checkpoint.read(5, pealZeroMaster, 1, master); }),
                  "129");
  EXPECT_CONTAINS(failureOf(pealInvalidArgument, [&] { (void)checkpoint.parameter(11); }), "11");
}

}  // namespace
}  // namespace peal::zero::test

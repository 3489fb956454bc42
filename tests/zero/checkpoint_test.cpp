// Checkpoints on ranks that are threads: saved on some number of ranks and loaded on another, continued, and
// saved beside training. What is refused: checkpoint_damage_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "lib/zero/checkpoint/crc32c.h"
#include "tests/zero/checkpoint_support.h"

namespace peal::zero::test {
namespace {

// ---- round trips ------------------------------------------------------------------------------------------

struct Stop {
  int ranks, stage;
  size_t bucketBytes = 100;
};

// Trains and saves at the first stop. Each later one loads what the one before saved, has the same bits, and
// saves.
void travel(const CheckpointDirectory& directory, const std::vector<Stop>& journey, const Shape& shape,
            const std::function<void(Trainer&, const std::string& path)>& save) {
  std::vector<std::vector<float>> expected;
  for (size_t stop = 0; stop < journey.size(); ++stop) {
    const Stop& here = journey[stop];
    onRanks(here.ranks, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, checkpointOptions(here.stage, here.bucketBytes), shape);
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
      save(trainer, directory / fmt::format("stop{}", stop));
    });
  }
}

TEST(Checkpoint, TheSameBytesOnAnyNumberOfRanksAtAnyStageAndBucketSize) {
  const std::vector<std::vector<Stop>> journeys{
      {{4, 1, 100}, {3, 3, 2}, {5, 2, 402}, {1, 0, 100}, {4, 2, 1 << 20}},
      {{4, 3, 100}, {3, 0, 2}, {5, 1, 1 << 20}, {1, 3, 100}, {4, 0, 402}},
  };
  for (const auto& journey : journeys) {
    const CheckpointDirectory directory;
    travel(directory, journey, unevenShape(),
           [](Trainer& trainer, const std::string& path) { trainer.engine().save(path); });
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
  travel(directory, {{4, 3}, {3, 1}, {5, 3}, {1, 0}, {3, 2}}, shapeWith(true, 0),
         [](Trainer& trainer, const std::string& path) {
           trainer.engine().saveBegin(path);
           trainer.step();
           trainer.engine().saveWait();
         });
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

// The weights' type is in the manifest; weights of the other type are taken over only when that is asked for.
// A manifest that says nothing is from before there was such a line.
TEST(Checkpoint, WeightsOfAnotherTypeAreRefusedOrConverted) {
  const CheckpointDirectory directory;
  const auto typed = [](pealZeroMasterFormat_t master, int converts) {
    pealZeroOptions_t options = checkpointOptions(2);
    options.master = master;
    options.reduceType = master == pealZeroMasterIsWeight ? pealZeroReduceFp32 : pealZeroReduceBf16;
    options.convertWeights = converts;
    return options;
  };
  std::vector<float> masters;
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, typed(pealZeroMasterFp32, 0), unevenShape());
    trainer.step();
    trainer.engine().save(directory / "bf16");
    const std::vector<float> mine = trainer.read(pealZeroMaster);
    if (rank == 0) {
      masters = mine;
    }
  });
  EXPECT_EQ(Checkpoint(directory / "bf16").info().weightBytes, 2);
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer wide(comm, rank, typed(pealZeroMasterIsWeight, 0), unevenShape());
    const auto before = stateOf(wide);
    EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { wide.engine().load(directory / "bf16"); }),
                    "was saved with bf16 weights and the engine's are fp32");
    EXPECT_TRUE(sameBits(stateOf(wide), before));
    Trainer converting(comm, rank, typed(pealZeroMasterIsWeight, 1), unevenShape());
    converting.engine().load(directory / "bf16");
    EXPECT_EQ(converting.read(pealZeroWeight), masters);
    converting.engine().save(directory / "fp32");
    Trainer narrow(comm, rank, typed(pealZeroMasterRemainder, 0), unevenShape());
    EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { narrow.engine().load(directory / "fp32"); }),
                    "was saved with fp32 weights and the engine's are bf16");
  });

  const std::string file = directory / "fp32/manifest.txt";
  std::ostringstream whole;
  whole << std::ifstream(file).rdbuf();
  const auto rewrite = [&](const std::string& line) {
    std::string text = whole.str();
    const std::string old = "weights fp32\n";
    text.replace(text.find(old), old.size(), line);
    text.resize(text.rfind("checksum "));
    std::ofstream(file) << text
                        << fmt::format("checksum {:08x}\n", checkpoint::crc32c(0, text.data(), text.size()));
  };
  onRanks(1, [&](int rank, pealComm_t comm) {
    Trainer narrow(comm, rank, typed(pealZeroMasterFp32, 0), unevenShape());
    rewrite("weights fp16\n");
    EXPECT_CONTAINS(failureOf(pealInvalidArgument, [&] { narrow.engine().load(directory / "fp32"); }),
                    "bf16, fp32 or mixed, the types of weights that this peal knows, is expected");
    rewrite("");
    narrow.engine().load(directory / "fp32");
    EXPECT_EQ(narrow.read(pealZeroMaster), masters);
    EXPECT_EQ(Checkpoint(directory / "fp32").info().weightBytes, 0);
  });
}

// Epsilons below the least were legal once: an engine with the least one loads what was saved with them.
TEST(Checkpoint, EpsilonsThatWereLegalOnceAreTheLeast) {
  const CheckpointDirectory directory;
  onRanks(1, [&](int rank, pealComm_t comm) {
    pealZeroOptions_t options = roundingOptions(2, Rounding::Nearest);
    options.epsilon = 1.2e-38;
    Trainer trainer(comm, rank, options, unevenShape());
    trainer.step();
    trainer.engine().save(directory / "a");
    const std::string file = directory / "a/manifest.txt";
    std::ostringstream whole;
    whole << std::ifstream(file).rdbuf();
    std::string text = whole.str();
    const std::string least = fmt::format(" {:016x} ", std::bit_cast<uint64_t>(1.2e-38));
    ASSERT_NE(text.find(least), std::string::npos);
    text.replace(text.find(least), least.size(), fmt::format(" {:016x} ", 0));
    text.resize(text.rfind("checksum "));
    std::ofstream(file) << text
                        << fmt::format("checksum {:08x}\n", checkpoint::crc32c(0, text.data(), text.size()));
    const auto before = stateOf(trainer);
    trainer.engine().load(directory / "a");
    EXPECT_TRUE(sameBits(stateOf(trainer), before));
    Trainer other(comm, rank, roundingOptions(2, Rounding::Nearest), unevenShape());
    EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { other.engine().load(directory / "a"); }), "epsilon");
  });
}

// Moments are kept as they were made, and the engine's numbers count from there on; before the first update
// there is nothing that other numbers have made.
TEST(Checkpoint, OtherAdamwNumbersAreTakenOnIfAsked) {
  const CheckpointDirectory directory;
  const auto with = [](double weightDecay, int converts) {
    pealZeroOptions_t options = checkpointOptions(2);
    options.weightDecay = weightDecay;
    options.beta2 = weightDecay == 0.1 ? 0.999 : 0.95;
    options.convertOptimizer = converts;
    return options;
  };
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer first(comm, rank, with(0.1, 0), unevenShape());
    first.engine().save(directory / "new");
    first.step();
    first.engine().save(directory / "a");
    Trainer refusing(comm, rank, with(0.3, 0), unevenShape());
    EXPECT_CONTAINS(
        failureOf(pealInvalidUsage, [&] { refusing.engine().load(directory / "a"); }),
        "with beta2 0.999, the engine has 0.95; make it with the same, or with convertOptimizer 1");
    refusing.engine().load(directory / "new");
    Trainer converting(comm, rank, with(0.3, 1), unevenShape());
    converting.engine().load(directory / "a");
    EXPECT_TRUE(sameBits(stateOf(converting), stateOf(first)));
    first.step();
    converting.continueAfter(1);
    converting.step();
    const std::vector<float> before = first.read(pealZeroMoment1), after = converting.read(pealZeroMoment1);
    EXPECT_EQ(after, before);  // beta1 is the same
    EXPECT_NE(converting.read(pealZeroMoment2), first.read(pealZeroMoment2));
    EXPECT_NE(converting.read(pealZeroMaster), first.read(pealZeroMaster));
    converting.engine().save(directory / "b");
  });
  EXPECT_EQ(Checkpoint(directory / "b").info().weightDecay, 0.3);
}

// An engine that loads needs no first values, and sends none.
TEST(Checkpoint, LoadsIntoAnEngineWithoutFirstValues) {
  const CheckpointDirectory directory;
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    onRanks(2, [&](int rank, pealComm_t comm) {
      pealZeroOptions_t options = checkpointOptions(stage);
      const std::string path = directory / std::to_string(stage);
      std::vector<float> saved(40), loaded(40);
      {
        Engine first(comm, options);
        const int id = first.addParameter("w", 40, 0, pealZeroDecay);
        for (size_t i = 0; i < saved.size(); ++i) {
          saved[i] = 0.1F * static_cast<float>(i);
        }
        first.setInitial(id, saved);
        first.seal();
        first.save(path);
      }
      options.initialValues = 0;
      Engine engine(comm, options);
      const int id = engine.addParameter("w", 40, 0, pealZeroDecay);
      EXPECT_CONTAINS(failureOf(pealInvalidUsage, [&] { engine.setInitial(id, saved); }),
                      "takes no first values: the engine's initialValues is 0");
      engine.seal();
      const uint64_t sent = engine.counters().elementsSent[pealZeroStart];
      EXPECT_LT(sent, 40U) << "rank " << rank;  // two agreements
      engine.read(id, pealZeroMaster, loaded.data());
      EXPECT_EQ(loaded, std::vector<float>(40));
      engine.load(path);
      engine.read(id, pealZeroMaster, loaded.data());
      EXPECT_EQ(loaded, saved);
    });
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

}  // namespace
}  // namespace peal::zero::test

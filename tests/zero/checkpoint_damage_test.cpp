// Checkpoints that are damaged, foreign or of another model are refused with file and offset, and change
// nothing; whole ones are read without an engine.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/zero/before.h"
#include "tests/zero/breadth.h"
#include "tests/zero/checkpoint_support.h"

namespace peal::zero::test {
namespace {

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
    checkpoint.read(i, pealZeroWeight, 0, values);
    if (checkpoint.parameter(i).frozen != 0) {
      continue;
    }
    for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2}) {
      checkpoint.read(i, tensor, 0, values);
    }
  }
}

// Masters, both moments, weights that are not their masters' rounding, and frozen weights, on both ranks.
void saveAllStreams(const std::string& path) {
  onRanks(2, [&](int rank, pealComm_t comm) {
    pealZeroOptions_t options = checkpointOptions(2);
    options.stochasticRounding = 1;
    options.seed = 5;
    Trainer trainer(comm, rank, options, {{9, 0}, {5, 1}, {6, 1, pealZeroDecay, 0, true}});
    trainer.step();
    trainer.step();
    trainer.engine().save(path, bytesOf("seed 7"));
  });
  EXPECT_EQ(Checkpoint(path).info().hasWeights, 1);
}

TEST(Damage, EveryFlippedByteIsFoundWithFileAndOffset) {
  const CheckpointDirectory directory;
  saveAllStreams(directory / "a");
  readEverything(directory / "a");
  for (const char* name : {"manifest.txt", "part-00000.bin", "part-00001.bin", "user.bin"}) {
    const std::string file = directory / (std::string("a/") + name);
    const uint64_t size = fs::file_size(file);
    for (uint64_t offset = 0; offset < size; offset += kEveryByte) {
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
  saveAllStreams(directory / "a");
  for (const char* name : {"manifest.txt", "part-00000.bin", "part-00001.bin", "user.bin"}) {
    const std::string file = directory / (std::string("a/") + name);
    std::ifstream stream(file, std::ios::binary);
    const std::string whole((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    for (size_t size = 0; size < whole.size(); size += kEveryByte) {
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

// With random rounding weights are stored beside their masters, those of fp32 parameters rounded with them: a
// load looks at all of it, so whoever reads everything does, too.
TEST(Damage, IsFoundInWhatIsStoredForOtherParametersToo) {
  const CheckpointDirectory directory;
  pealZeroOptions_t options = checkpointOptions(1, 1 << 20);
  options.stochasticRounding = 1;
  Shape shape{{300000, 0}, {7, 0}};
  shape.front().dtype = pealFloat32;
  onRanks(1, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, shape);
    trainer.step();
    trainer.engine().save(directory / "a");
  });
  const auto readWeights = [&] {
    const Checkpoint checkpoint(directory / "a");
    std::vector<float> values(shape.front().elements);
    for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2, pealZeroWeight}) {
      checkpoint.read(0, tensor, 0, values);
    }
  };
  readWeights();
  const std::string file = directory / "a/part-00000.bin";
  const uint64_t size = fs::file_size(file);
  EXPECT_GT(size, shape.front().elements * 14);
  for (uint64_t offset = 1 << 16; offset < size; offset += 1 << 17) {
    flipByte(file, offset);
    EXPECT_CONTAINS(failureOf(pealInvalidArgument, readWeights), "offset") << offset << " of " << size;
    flipByte(file, offset);
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

// One rank's memory is not what it loaded when the ranks compare: after what was read, in the second of the
// load's three votes.
TEST(Refusals, ReplicasThatLoadedOtherValuesAreNamedOnAllRanks) {
  const CheckpointDirectory directory;
  saveModel(directory / "a", 1, 0);
  onRanks(3, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(0), unevenShape());
    Engine& engine = trainer.engine();
    engine.enter(2, pealZeroForward);
    auto* const weights = const_cast<uint16_t*>(engine.weights(5));  // at stage 0 they stay where they are
    engine.leave(2, pealZeroForward);
    int votes = 0;
    {
      const Before before(engine.handle(), [&](Kind kind) {
        votes += kind == Kind::Other ? 1 : 0;
        if (rank == 1 && votes == 2) {
          weights[77] ^= 1;
        }
      });
      const std::string why = failureOf(pealInternalError, [&] { engine.load(directory / "a"); });
      EXPECT_CONTAINS(why, "ranks 0 and 1 hold the same elements but loaded other values for them");
      EXPECT_CONTAINS(why, "the engine holds a part of ");
      EXPECT_EQ(votes, 3);
    }
    EXPECT_CONTAINS(failureOf(pealInternalError, [&] { trainer.step(); }), "can only be destroyed");
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

// What is decided before a launch: the tuner's answer for GPUs, and the shape of the boxes.
#include <gtest/gtest.h>

#include "lib/executor/box_shape.h"
#include "lib/executor/cuda/view.h"
#include "lib/tuner/device_costs.h"
#include "lib/tuner/tuner.h"

namespace {

using namespace peal;

DeviceQuestion questionOf(size_t bytes) {
  static const LinkTable links = [] {
    LinkTable made = assumedLinks();
    made.gpu = assumedGpuCost(GpuPath::Nvlink);
    return made;
  }();
  return {.call = {.kind = pealStatAllReduce, .bytes = bytes, .size = 8, .slotBytes = 65520, .links = &links},
          .llBytes = 8160,
          .ll128Bytes = 15120,
          .channels = 16,
          .path = GpuPath::Nvlink};
}

TEST(Choices, FitTheirSlotsAndUseAllChannelsForMuch) {
  for (size_t bytes = 0; bytes < size_t{1} << 32; bytes = bytes * 3 + 1) {
    for (const char* forced : {"auto", "simple", "ll", "ll128"}) {
      DeviceQuestion question = questionOf(bytes);
      question.forced = forced;
      const Result<Choice> choice = chooseOnDevice(question);
      ASSERT_TRUE(choice) << choice.error().message;
      const size_t most = choice->protocol == Protocol::Simple ? question.call.slotBytes
                          : choice->protocol == Protocol::LL   ? question.llBytes
                                                               : question.ll128Bytes;
      EXPECT_GE(choice->chunkBytes, 16u) << bytes << " " << forced;
      EXPECT_LE(choice->chunkBytes, most) << bytes << " " << forced;
      EXPECT_GE(choice->channels, 1);
      EXPECT_LE(choice->channels, 16);
    }
  }
  EXPECT_EQ(chooseOnDevice(questionOf(64))->channels, 1);
  EXPECT_EQ(chooseOnDevice(questionOf(size_t{1} << 30))->channels, 16);
}

TEST(Shapes, StayInTheMemoryThatTheyMayUse) {
  for (const int ranks : {2, 3, 8, 72}) {
    for (const int channels : {1, 4, 32}) {
      for (const int slots : {2, 4, 8}) {
        const size_t bufferBytes = size_t{32} << 20;
        const Result<cuda::BoxShape> made = cuda::shapeFor(ranks, channels, slots, 0, bufferBytes);
        ASSERT_TRUE(made) << made.error().message;
        const cuda::BoxShape shape = *made;
        EXPECT_GE(shape.channels, 1);
        EXPECT_LE(shape.channels, channels);
        EXPECT_EQ(shape.slots, slots);
        EXPECT_EQ(shape.slotBytes % 128, 0u);
        EXPECT_EQ(shape.lowSlotBytes % 128, 0u);
        EXPECT_LE((cuda::WindowShape{shape, ranks}.bytes()), bufferBytes)
            << ranks << " " << channels << " " << slots;
      }
    }
  }
}

// However little that is, and whatever slots were asked for; where nothing fits, the user learns what would.
TEST(Shapes, NeverTakeMoreThanTheyMay) {
  for (const size_t slotBytes : {0, 64, 4096, 65536}) {
    for (const int ranks : {2, 3, 8, 72}) {
      for (const int channels : {1, 4, 32}) {
        for (const int slots : {2, 4, 8}) {
          bool fitted = false;
          for (size_t bufferBytes = 65536; bufferBytes <= size_t{8} << 20;
               bufferBytes += bufferBytes / 3 / 64 * 64) {
            const Result<cuda::BoxShape> shape =
                cuda::shapeFor(ranks, channels, slots, slotBytes, bufferBytes);
            if (shape) {
              EXPECT_LE((cuda::WindowShape{*shape, ranks}.bytes()), bufferBytes)
                  << ranks << " " << channels << " " << slots << " " << slotBytes;
            } else {
              EXPECT_FALSE(fitted) << "less did";
              EXPECT_NE(shape.error().message.find("PEAL_DEVICE_BUFFER_BYTES="), std::string::npos);
            }
            fitted = fitted || shape;
          }
          EXPECT_TRUE(fitted);
        }
      }
    }
  }
  // What the error says is enough.
  const Result<cuda::BoxShape> refused = cuda::shapeFor(8, 4, 4, 0, 65536);
  ASSERT_FALSE(refused);
  const std::string& told = refused.error().message;
  const size_t least = std::stoul(told.substr(told.find("those take ") + 11));
  EXPECT_TRUE(cuda::shapeFor(8, 4, 4, 0, least)) << told;
  EXPECT_FALSE(cuda::shapeFor(8, 4, 4, 0, least - 1)) << told;
}

TEST(Shapes, TakeTheSlotSizeThatWasAskedFor) {
  const cuda::BoxShape shape = *cuda::shapeFor(4, 2, 2, 1024, size_t{32} << 20);
  EXPECT_GE(shape.payloadBytes(Protocol::Simple), 1024u);
  EXPECT_LT(shape.payloadBytes(Protocol::Simple), 1280u);
  EXPECT_EQ(shape.channels, 2);
  const cuda::WindowShape huge{*cuda::shapeFor(8, 16, 4, size_t{16} << 20, size_t{32} << 20), 8};
  EXPECT_LE(huge.bytes(), size_t{32} << 20);
  EXPECT_EQ(huge.box.channels, 1);
}

}  // namespace

// copyBytes: exactly the bytes asked for, from and to any alignment.
#include <gtest/gtest.h>

#include <cstring>

#include "lib/reduce/dispatch.h"
#include "tests/unit/reduce/guarded_buffer.h"
#include "tests/unit/reduce/reference.h"

namespace peal {
namespace {

TEST(CopyBytes, CopiesExactlyTheBytesWhateverTheAlignment) {
  reference::Random random(7);
  for (const Isa isa : reference::isas()) {
    for (const Store store : {Store::Cached, Store::Streaming}) {
      for (const size_t bytes :
           {0U,    1U,    3U,    63U,   64U,    65U,    127U,   256U,   257U,     511U,    512U,
            1021U, 2048U, 2049U, 4133U, 16383U, 16384U, 16450U, 65537U, 1048575U, 1100003U}) {
        for (const size_t gapBytes : {0U, 1U, 8U, 33U, 60U}) {
          GuardedBuffer from(bytes, gapBytes);
          GuardedBuffer to(bytes, gapBytes / 2);
          for (size_t i = 0; i < bytes; ++i) {
            from.data()[i] = static_cast<uint8_t>(random.bits());
          }
          copyBytesWith(isa, to.data(), from.data(), bytes, store);
          ASSERT_EQ(bytes == 0 ? 0 : std::memcmp(to.data(), from.data(), bytes), 0)
              << isaName(isa) << ", " << bytes << " bytes, gap " << gapBytes;
          ASSERT_TRUE(to.intact()) << isaName(isa) << ", " << bytes << " bytes, gap " << gapBytes;
        }
      }
    }
  }
}

TEST(CopyBytes, OntoItselfChangesNothing) {
  std::vector<uint8_t> bytes(40021);
  reference::Random random(8);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(random.bits());
  }
  const std::vector<uint8_t> before = bytes;
  for (const Isa isa : reference::isas()) {
    for (const Store store : {Store::Cached, Store::Streaming}) {
      copyBytesWith(isa, bytes.data(), bytes.data(), bytes.size(), store);
      ASSERT_EQ(bytes, before) << isaName(isa);
    }
  }
}

TEST(CopyBytes, OfNothingNeedsNoMemory) {
  copyBytes(nullptr, nullptr, 0, Store::Cached);
  copyBytes(nullptr, nullptr, 0, Store::Streaming);
  const void* const none = nullptr;
  for (const Isa isa : reference::isas()) {
    reduceWith(isa, pealFloat32, {}, {.sources = {&none, 1}, .destinations = {nullptr, nullptr}, .count = 0});
  }
}

}  // namespace
}  // namespace peal

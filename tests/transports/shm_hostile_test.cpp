// A rank whose peer writes nonsense into the memory and the sockets that they share: it must get a fault
// that names the peer, and never crash.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "lib/memory/descriptor.h"
#include "tests/transports/transports.h"
#include "transports/shm/connect.h"

namespace peal::test {
namespace {

using shm::Descriptor;
using shm::Kind;
using shm::Note;

constexpr size_t kSlotBytes = 4096;
constexpr uint32_t kSlots = 2;

// What the hostile rank (0) has of the victim (1).
struct Hostile {
  const shm::Layout& layout;
  shm::Peer& victim;
  Descriptor& first() const { return *victim.segment->shared().ring(layout, 0); }
  // Overwrites the victim's first descriptor and publishes it.
  void write(uint32_t kind, uint32_t bytes, uint32_t extra = 0, uint64_t word0 = 0, uint64_t word1 = 0,
             uint64_t word2 = 0) const {
    Descriptor& descriptor = first();
    descriptor.meta = kind << Descriptor::kBytesBits | bytes;
    descriptor.extra = extra;
    descriptor.words[0] = word0;
    descriptor.words[1] = word1;
    descriptor.words[2] = word2;
    descriptor.flag.store(1, std::memory_order_release);
  }
  void write(Kind kind, uint32_t bytes, uint32_t extra = 0, uint64_t word0 = 0, uint64_t word1 = 0,
             uint64_t word2 = 0) const {
    write(static_cast<uint32_t>(kind), bytes, extra, word0, word1, word2);
  }
  void send(const void* data, size_t bytes, int file = -1) const {
    EXPECT_EQ(shm::sendPacket(victim.socket.get(), data, bytes, file), 0);
  }
  void share(uint64_t id, uint64_t bytes, int file) const {
    const shm::RegionNote note{Note::RegionBegins, 0, id, bytes};
    send(&note, sizeof note, file);
  }
};

struct Attack {
  const char* name;
  std::function<void(const Hostile&)> act;
  const char* expected;  // in the victim's error
};

int unsealedFile(size_t bytes) {
  const int fd = memfd_create("unsealed", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  return fd;
}

std::vector<Attack> attacks() {
  return {
      {"UnknownKind", [](const Hostile& h) { h.write(10, 10); }, "kind 10"},
      {"NoKind", [](const Hostile& h) { h.write(0, 10); }, "kind 0"},
      {"InlineTooLong", [](const Hostile& h) { h.write(Kind::Inline, 33); }, "33 inline bytes"},
      {"SlotTooLong", [](const Hostile& h) { h.write(Kind::Staged, kSlotBytes + 1); },
       "4097 bytes in a slot"},
      {"SlotFarTooLong", [](const Hostile& h) { h.write(Kind::Staged, (1U << 28) - 1); }, "in a slot"},
      {"SharedSlotOutside", [](const Hostile& h) { h.write(Kind::StagedAll, 10, 0, kSlots); }, "slot 2 of 2"},
      {"SharedSlotFarOutside", [](const Hostile& h) { h.write(Kind::StagedAll, 10, 0, ~0UL); }, "in slot"},
      {"ReleasesWhatWasNotSent", [](const Hostile& h) { h.write(Kind::Inline, 10, 7); },
       "it released 7 messages"},
      // In the upper bits, too: counts are whole.
      {"ReleasesFarMore", [](const Hostile& h) { h.write(Kind::Inline, 10, 0x80000001U); },
       "it released 2147483649 messages"},
      {"ReleasesFarMoreYet", [](const Hostile& h) { h.write(Kind::Inline, 3U << 6 | 10, 7); },
       "it released 12884901895 messages"},
      {"SharedSlotReleasesWhatWasNotSent",
       [](const Hostile& h) { h.write(Kind::StagedAll, 10, 0, 0, uint64_t{1} << 32); },
       "it released 4294967296 messages"},
      {"SharedSlotTooLong", [](const Hostile& h) { h.write(Kind::StagedAll, kSlotBytes + 1, 0); },
       "in slot 0"},
      {"ShortOutside", [](const Hostile& h) { h.write(Kind::Short, 10, 0, shm::ByteRing::kBytes - 9); },
       "10 short bytes at 32759"},
      {"ShortFarOutside", [](const Hostile& h) { h.write(Kind::Short, 10, 0, ~0UL); }, "10 short bytes at"},
      {"ShortTooLong", [](const Hostile& h) { h.write(Kind::Short, kSlotBytes + 1); }, "4097 short bytes"},
      {"ShortReleasesWhatWasNotSent", [](const Hostile& h) { h.write(Kind::Short, 10, 0, 0, 7); },
       "it released 7 messages"},
      {"ShortReleasesFarMore", [](const Hostile& h) { h.write(Kind::Short, 10, 0, 0, uint64_t{1} << 32); },
       "it released 4294967296 messages"},
      {"ShortLendsAnUnknownRegion", [](const Hostile& h) { h.write(Kind::Short, 64, 77); }, "region 77"},
      {"PointerFromAnotherProcess", [](const Hostile& h) { h.write(Kind::Pointer, 0, 0, 64, 8); },
       "a reference of kind 4"},
      {"UnknownRegion", [](const Hostile& h) { h.write(Kind::Region, 0, 0, 64, 77, 0); }, "region 77"},
      {"BeyondARegion",
       [](const Hostile& h) {
         const Result<OwnedFd> file = createMemoryFile("region", 4096);
         h.share(7, 4096, file->get());
         h.write(Kind::Region, 0, 0, 100, 7, 4000);
       },
       "100 bytes at 4000 of region 7"},
      {"RegionOffsetOverflows",
       [](const Hostile& h) {
         const Result<OwnedFd> file = createMemoryFile("region", 4096);
         h.share(7, 4096, file->get());
         h.write(Kind::Region, 0, 0, 100, 7, ~uint64_t{0} - 50);
       },
       "of region 7"},
      {"ReadTooLong", [](const Hostile& h) { h.write(Kind::ProcessRead, 0, 0, kSlotBytes + 1, 4096); },
       "a reference of kind 6"},
      {"ReadUnmapped", [](const Hostile& h) { h.write(Kind::ProcessRead, 0, 0, 64, 8); },
       // Where the system lets no rank read another, the kind itself is refused.
       probeShm().crossRead ? "could not read 64 bytes" : "a reference of kind 6"},
      {"RegionCanShrink",
       [](const Hostile& h) {
         const OwnedFd file(unsealedFile(4096));
         h.share(7, 4096, file.get());
         h.write(Kind::Region, 0, 0, 64, 7, 0);
       },
       "not sealed"},
      {"RegionShorterThanSaid",
       [](const Hostile& h) {
         const Result<OwnedFd> file = createMemoryFile("region", 4096);
         h.share(7, 8192, file->get());
         h.write(Kind::Region, 0, 0, 64, 7, 0);
       },
       "8192 were announced"},
      {"RegionTwice",
       [](const Hostile& h) {
         const Result<OwnedFd> file = createMemoryFile("region", 4096);
         h.share(7, 4096, file->get());
         h.share(7, 4096, file->get());
       },
       "known already"},
      {"LendsAnUnknownRegion", [](const Hostile& h) { h.write(Kind::Staged, 64, 77); }, "region 77"},
      {"LandsUnasked", [](const Hostile& h) { h.write(Kind::Landed, 64); }, "where nothing was lent"},
      {"RegionWithoutFile", [](const Hostile& h) { h.share(7, 4096, -1); }, "sent something wrong"},
      {"UnknownNote",
       [](const Hostile& h) {
         const uint32_t note = 99;
         h.send(&note, sizeof note);
       },
       "kind 99"},
      {"ShortFarewell",
       [](const Hostile& h) {
         const Note note = Note::Farewell;
         h.send(&note, sizeof note);
       },
       "sent something wrong"},
      {"LongPacket",
       [](const Hostile& h) {
         const std::vector<char> packet(5000, 'x');
         h.send(packet.data(), packet.size());
       },
       "sent something wrong"},
      {"FarewellWithWildLength",
       [](const Hostile& h) {
         shm::FarewellNote note = shm::FarewellNote::make(12345, "wild");
         note.reasonBytes = ~0U;
         h.send(&note, sizeof note);
       },
       "left because of itself: wild"},
      {"CreditFromTheFuture",
       [](const Hostile& h) { h.victim.segment->shared().credit(h.layout, 0).released = 1000; },
       "released 1000 messages of 2"},
  };
}

class ShmHostile : public ::testing::TestWithParam<Attack> {};
INSTANTIATE_TEST_SUITE_P(Attacks, ShmHostile, ::testing::ValuesIn(attacks()),
                         [](const auto& row) { return std::string(row.param.name); });

// Uses up its credits, then looks for messages, as an executor does.
void beTheVictim(Endpoint& endpoint, const char* expected) {
  for (uint32_t i = 0; i < kSlots; ++i) {
    ASSERT_NE(endpoint.link(0).tryStage(100), nullptr);
    endpoint.link(0).post(100, Digest{});
  }
  std::string error;
  Arrival arrival;
  EXPECT_FALSE(waitUntil(
      endpoint, 0,
      [&] { return endpoint.link(0).tryReceive(arrival) || endpoint.link(0).tryStage(1) != nullptr; },
      &error));
  EXPECT_TRUE(endpoint.faulted());
  EXPECT_NE(error.find("rank 0"), std::string::npos) << error;
  EXPECT_NE(error.find(expected), std::string::npos) << error;
  EXPECT_FALSE(endpoint.link(0).tryReceive(arrival)) << "a malformed message was shown later";
}

TEST_P(ShmHostile, BecomesAFaultThatNamesTheRank) {
  const Attack& attack = GetParam();
  ExchangeBoard board(2);
  const ShmOptions options{kSlotBytes, kSlots, true, Deadline::afterMs(kTestLimitMs / 2)};
  expectAllSucceeded(runProcesses(2, std::chrono::milliseconds(kTestLimitMs), [&](const Child& child) {
    BoardExchange exchange(board, child.index());
    if (child.index() == 1) {
      Result<std::unique_ptr<Endpoint>> endpoint = connectShm(exchange, kSecret, options);
      EXPECT_TRUE(endpoint);
      if (endpoint) {
        beTheVictim(**endpoint, attack.expected);
      }
    } else {
      const shm::Layout layout(2, kSlots, kSlotBytes);
      Result<shm::Membership> membership = shm::connectPeers(exchange, kSecret, options, layout);
      EXPECT_TRUE(membership);
      if (membership) {
        attack.act(Hostile{layout, membership->peers[1]});
        EXPECT_TRUE(exchange.allGather({}));
        return 0;
      }
    }
    EXPECT_TRUE(exchange.allGather({}));
    return 0;
  }));
}

// Random bytes in everything that the victim reads. It may take them for messages; it must not crash.
TEST(ShmHostileNoise, NeverCrashes) {
  constexpr int kTurns = 300;
  ExchangeBoard board(2);
  const ShmOptions options{kSlotBytes, kSlots, true, Deadline::afterMs(kTestLimitMs / 2)};
  expectAllSucceeded(runProcesses(2, std::chrono::milliseconds(kTestLimitMs), [&](const Child& child) {
    BoardExchange exchange(board, child.index());
    const shm::Layout layout(2, kSlots, kSlotBytes);
    int faults = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      if (child.index() == 0) {
        Result<shm::Membership> membership = shm::connectPeers(exchange, kSecret, options, layout);
        EXPECT_TRUE(membership);
        const std::vector<std::byte> noise = pattern(0, turn, sizeof(Descriptor));
        Descriptor& target = *membership->peers[1].segment->shared().ring(layout, 0);
        std::memcpy(reinterpret_cast<std::byte*>(&target) + 4, noise.data() + 4, sizeof(Descriptor) - 4);
        target.meta.store((target.meta.load() & 0x0000ffff) | static_cast<uint32_t>(turn % 16) << 28);
        target.flag.store(1, std::memory_order_release);
        EXPECT_TRUE(exchange.allGather({}));
        EXPECT_TRUE(exchange.allGather({}));
      } else {
        Result<std::unique_ptr<Endpoint>> endpoint = connectShm(exchange, kSecret, options);
        EXPECT_TRUE(endpoint);
        EXPECT_TRUE(exchange.allGather({}));
        Arrival arrival;
        if ((*endpoint)->link(0).tryReceive(arrival)) {
          uint8_t sum = 0;
          for (size_t i = 0; i < arrival.bytes; ++i) {
            sum = static_cast<uint8_t>(sum + static_cast<uint8_t>(arrival.data[i]));
          }
          EXPECT_LE(arrival.bytes, kSlotBytes) << int{sum};
        } else {
          EXPECT_TRUE((*endpoint)->faulted());
          ++faults;
        }
        EXPECT_TRUE(exchange.allGather({}));
      }
    }
    EXPECT_TRUE(child.index() == 0 || faults > kTurns / 2) << faults;
    return 0;
  }));
}

}  // namespace
}  // namespace peal::test

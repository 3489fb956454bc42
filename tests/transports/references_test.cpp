// Messages by reference: what peers can read in place, that they see the right bytes, and when the memory
// may change again.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>

#include "lib/memory/registry.h"
#include "tests/transports/transports.h"

namespace peal::test {
namespace {

class References : public TransportTest {};
INSTANTIATE_TEST_SUITE_P(Transports, References, ::testing::ValuesIn(transportsWithReferences()),
                         transportName);

// A buffer of pealMemAlloc with a pattern in it.
struct SharedBuffer {
  SharedBuffer(int srcRank, int number, size_t size) : bytes(size) {
    const Result<void*> memory = allocateShared(size);
    EXPECT_TRUE(memory) << memory.error().message;
    data = static_cast<std::byte*>(*memory);
    const std::vector<std::byte> content = pattern(srcRank, number, size);
    std::copy(content.begin(), content.end(), data);
  }
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;
  ~SharedBuffer() { EXPECT_TRUE(freeShared(data)); }
  std::byte* data = nullptr;
  size_t bytes;
};

void postReference(const Rank& self, int peer, const std::byte* data, size_t bytes, const Digest& digest) {
  ASSERT_TRUE(self.link(peer).canReference(data, bytes));
  ASSERT_TRUE(
      waitUntil(self.endpoint, peer, [&] { return self.link(peer).tryPostReference(data, bytes, digest); }));
}

void waitDrained(const Rank& self, int peer) {
  ASSERT_TRUE(waitUntil(self.endpoint, peer, [&] { return self.link(peer).drained(); }));
}

void expectShown(const Rank& self, int peer) {
  Arrival arrival;
  ASSERT_TRUE(waitUntil(self.endpoint, peer, [&] { return self.link(peer).tryReceive(arrival); }));
}

// All sizes, also beyond a slot, at offsets that no type is aligned to.
TEST_P(References, SharedMemoryIsReadInPlaceWhateverItsSize) {
  run(2, {.slotBytes = 4096, .slots = 2}, [](const Rank& self) {
    const std::vector<size_t> sizes{0, 1, 31, 32, 33, 64, 4095, 4096, 4097, 100003, 1 << 20};
    const SharedBuffer buffer(0, 5, (1 << 20) + 64);
    const std::vector<std::byte> content = pattern(0, 5, buffer.bytes);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const size_t offset = i * 5;
      if (self.rank == 0) {
        postReference(self, 1, buffer.data + offset, sizes[i], digestOf(static_cast<int>(i)));
      } else {
        const auto first = content.begin() + static_cast<std::ptrdiff_t>(offset);
        expectMessage(self, 0, {first, first + static_cast<std::ptrdiff_t>(sizes[i])},
                      digestOf(static_cast<int>(i)));
      }
    }
    if (self.rank == 0) {
      waitDrained(self, 1);
    }
  });
}

TEST_P(References, DrainedMeansThatThePeerHasReleasedThem) {
  run(2, {.slotBytes = 4096, .slots = 3}, [](const Rank& self) {
    Link& link = self.link(1 - self.rank);
    const SharedBuffer buffer(0, 1, 1000);
    if (self.rank == 0) {
      EXPECT_TRUE(link.drained()) << "nothing was posted";
      postReference(self, 1, buffer.data, 1000, digestOf(1));
      sendMessage(self, 1, pattern(0, 2, 50), digestOf(2));
      EXPECT_FALSE(link.drained());
      self.meet();
      self.meet();  // the peer has released the reference, not the message after it
      EXPECT_TRUE(link.drained());
      std::memset(buffer.data, 0, 1000);
      self.meet();
    } else {
      self.meet();
      expectMessage(self, 0, pattern(0, 1, 1000), digestOf(1));
      self.meet();
      self.meet();
      expectMessage(self, 0, pattern(0, 2, 50), digestOf(2));
    }
  });
}

// Rank 1 answers where rank 0 lent memory along with a message of each kind, or by an ordinary message.
TEST_P(References, MemoryLentAlongIsWrittenByThePeer) {
  const bool same = sameProcess();
  run(2, {.slotBytes = 4096, .slots = 2}, [same](const Rank& self) {
    Link& link = self.link(1 - self.rank);
    const SharedBuffer question(0, 1, 3000), answer(0, 9, 5000);
    const std::vector<std::byte> untouched = pattern(0, 9, 5000);
    std::vector<std::byte> plain(64);
    EXPECT_FALSE(link.lend(plain.data(), plain.size())) << "memory that the peer cannot reach";
    if (self.rank == 0) {
      EXPECT_EQ(link.lend(answer.data + 100, 3000), !same);
      postReference(self, 1, question.data, 3000, digestOf(0));
      sendMessage(self, 1, pattern(0, 3, 2000), digestOf(1));
      EXPECT_EQ(link.lend(answer.data + 4000, 1000), !same);
      sendMessage(self, 1, pattern(0, 4, 1000), digestOf(2));
      for (const size_t bytes : same ? std::vector<size_t>{} : std::vector<size_t>{3000, 1000}) {
        Arrival arrival;
        ASSERT_TRUE(waitUntil(self.endpoint, 1, [&] { return link.tryReceive(arrival); }));
        EXPECT_TRUE(arrival.landed);
        EXPECT_EQ(arrival.bytes, bytes);
        link.release();
      }
      std::vector<std::byte> expected = untouched;
      if (!same) {
        std::fill_n(expected.begin() + 100, 3000, std::byte{7});
        std::fill_n(expected.begin() + 4000, 1000, std::byte{8});
      }
      EXPECT_EQ(std::vector<std::byte>(answer.data, answer.data + answer.bytes), expected);
    } else {
      for (const int number : {0, 1, 2}) {
        Arrival arrival;
        ASSERT_TRUE(waitUntil(self.endpoint, 0, [&] { return link.tryReceive(arrival); }));
        EXPECT_FALSE(arrival.landed);
        EXPECT_EQ(arrival.landing != nullptr, !same && number != 1) << number;
        if (arrival.landing != nullptr) {
          std::fill_n(arrival.landing, arrival.bytes, std::byte{number == 0 ? uint8_t{7} : uint8_t{8}});
          ASSERT_TRUE(waitUntil(self.endpoint, 0,
                                [&] { return link.tryPostLanded(arrival.bytes, digestOf(number)); }));
        }
        link.release();
      }
    }
    self.meet();
  });
}

// Rank 0 gives up while rank 1 is at its memory and a second message is under way. In one process it waits
// for the first to end; between processes, where the memory lent is mapped on its own, only for a moment.
TEST_P(References, WithdrawnMemoryIsNotTouchedAnyMore) {
  const bool same = sameProcess();
  run(2, {.slotBytes = 4096, .slots = 2}, [same](const Rank& self) {
    Link& link = self.link(1 - self.rank);
    const SharedBuffer question(0, 1, 3000), answer(0, 9, 3000);
    if (self.rank == 0) {
      for (const int number : {0, 1}) {
        EXPECT_EQ(link.lend(answer.data, 3000), !same);
        postReference(self, 1, question.data, 3000, digestOf(number));
      }
      self.meet();
      self.meet();  // rank 1 sees the first message, and has not released it
      self.endpoint.farewell(0, "it has had enough");
      EXPECT_EQ(self.endpoint.withdraw(30), same ? 1 : -1);
      self.meet();
      EXPECT_EQ(self.endpoint.withdraw(kTestLimitMs / 2), -1);
      self.meet();
    } else {
      self.meet();
      expectShown(self, 0);
      self.meet();
      self.meet();
      link.release();
      std::string error;
      Arrival arrival;
      EXPECT_FALSE(waitUntil(
          self.endpoint, 0, [&] { return link.tryReceive(arrival); }, &error));
      EXPECT_TRUE(contains(error, "rank 0") && contains(error, "it has had enough")) << error;
      self.meet();
    }
  });
}

// A rank that fails itself lets go of what it was shown: nobody waits for it.
TEST_P(References, WithdrawingLetsGo) {
  run(2, {.slotBytes = 4096, .slots = 2}, [](const Rank& self) {
    Link& link = self.link(1 - self.rank);
    const SharedBuffer question(self.rank, 1, 3000), answer(self.rank, 9, 3000);
    link.lend(answer.data, 3000);  // in one process it is not taken
    postReference(self, 1 - self.rank, question.data, 3000, digestOf(0));
    expectShown(self, 1 - self.rank);
    self.meet();
    self.endpoint.farewell(self.rank, "each has had enough");
    EXPECT_EQ(self.endpoint.withdraw(kTestLimitMs / 2), -1);
    self.meet();
  });
}

// Rank 0 takes back what rank 1 is reading, and may change it.
TEST_P(References, ReadingWhatWasTakenBackIsKnown) {
  if (sameProcess()) {
    GTEST_SKIP() << "a rank of the same process is waited for";
  }
  run(2, {.slotBytes = 4096, .slots = 2}, [](const Rank& self) {
    const SharedBuffer buffer(self.rank, 1, 3000);
    for (const bool takenBack : {false, true}) {
      if (self.rank == 0) {
        postReference(self, 1, buffer.data, 3000, digestOf(0));
        self.meet();
        if (takenBack) {
          self.endpoint.farewell(0, "it has had enough");
          EXPECT_EQ(self.endpoint.withdraw(kTestLimitMs / 2), -1);
        }
        self.meet();
      } else {
        expectShown(self, 0);
        self.meet();
        self.meet();
        self.link(0).release();
        EXPECT_EQ(self.endpoint.readWithdrawn(), takenBack);
      }
      self.meet();
    }
  });
}

// What rank 1 reads in place it copies together with rank 0, each taking parts in turn.
TEST_P(References, ReceiverAndSenderCopyTogether) {
  const bool same = sameProcess();
  run(2, {.slotBytes = 4096, .slots = 2}, [same](const Rank& self) {
    constexpr size_t kLong = 1000003, kShort = 1000;
    Link& link = self.link(1 - self.rank);
    const SharedBuffer buffer(self.rank, 3, kLong + 64);
    std::vector<std::byte> plain(kLong);
    Part part;
    for (const size_t bytes : {kLong, kShort, kLong}) {
      if (self.rank == 0) {
        postReference(self, 1, buffer.data + 5, bytes, digestOf(1));
        self.meet();
        if (bytes == kLong && !same) {
          int parts = 0;
          for (; link.takePart(part); ++parts) {
            EXPECT_FALSE(link.drained());
            std::copy_n(part.from, part.bytes, part.to);
            link.partDone();
            self.meet();  // rank 1 takes one
            self.meet();
          }
          EXPECT_GT(parts, 2);
        }
        EXPECT_FALSE(link.takePart(part));
        self.meet();
        waitDrained(self, 1);
        continue;
      }
      const std::vector<std::byte> content = pattern(0, 3, kLong + 64);
      const std::vector<std::byte> around = pattern(1, 3, kLong + 64);
      std::copy(around.begin(), around.end(), buffer.data);
      expectShown(self, 0);
      EXPECT_FALSE(link.share(plain.data())) << "memory that the peer cannot reach";
      EXPECT_EQ(link.share(buffer.data + 3), bytes == kLong && !same);
      EXPECT_TRUE(link.shareDone() || bytes == kLong);
      self.meet();
      if (bytes == kLong && !same) {
        size_t taken = 0;
        for (bool done = false; !done; self.meet()) {
          self.meet();
          if (link.takeShared(part)) {
            std::copy_n(part.from, part.bytes, part.to);
            ++taken;
          }
          done = link.shareDone();
        }
        EXPECT_GT(taken, 2U);
        std::vector<std::byte> expected = around;
        std::copy_n(content.begin() + 5, bytes, expected.begin() + 3);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), buffer.data));
      }
      EXPECT_FALSE(link.takeShared(part));
      self.meet();
      link.release();
    }
    self.meet();
  });
}

// Rank 1 gives up while rank 0 writes a part: that one ends, and rank 0 takes no other.
TEST_P(References, NoPartIsTakenOfWithdrawnMemory) {
  if (sameProcess()) {
    GTEST_SKIP() << "only copies between processes are shared";
  }
  run(2, {.slotBytes = 4096, .slots = 2}, [](const Rank& self) {
    constexpr size_t kBytes = 300000;
    Link& link = self.link(1 - self.rank);
    const SharedBuffer buffer(self.rank, 3, kBytes);
    if (self.rank == 0) {
      Part part;
      postReference(self, 1, buffer.data, kBytes, digestOf(0));
      self.meet();
      EXPECT_TRUE(link.takePart(part));
      self.meet();
      self.meet();  // rank 1 has waited for this part, for a moment
      std::copy_n(part.from, part.bytes, part.to);
      link.partDone();
      EXPECT_FALSE(link.takePart(part));
      self.meet();
    } else {
      expectShown(self, 0);
      EXPECT_TRUE(link.share(buffer.data));
      self.meet();
      self.meet();
      self.endpoint.farewell(1, "it has had enough");
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(self.endpoint.withdraw(30), -1);
      EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
      self.meet();
      self.meet();
      EXPECT_EQ(self.endpoint.withdraw(kTestLimitMs / 2), -1);
    }
  });
}

TEST_P(References, TakeCreditsLikeOtherMessages) {
  run(2, {.slotBytes = 4096, .slots = 2}, [](const Rank& self) {
    const SharedBuffer buffer(0, 1, 3000);
    if (self.rank == 0) {
      postReference(self, 1, buffer.data, 3000, digestOf(0));
      postReference(self, 1, buffer.data + 1000, 2000, digestOf(1));
      EXPECT_FALSE(self.link(1).tryPostReference(buffer.data, 3000, digestOf(2)));
      EXPECT_TRUE(self.link(1).canReference(buffer.data, 3000));
      self.meet();
      waitDrained(self, 1);
    } else {
      self.meet();
      const std::vector<std::byte> content = pattern(0, 1, 3000);
      expectMessage(self, 0, content, digestOf(0));
      expectMessage(self, 0, {content.begin() + 1000, content.end()}, digestOf(1));
    }
  });
}

TEST_P(References, UnregisteredMemoryIsReadableOnlyInTheSameProcess) {
  const bool same = sameProcess();
  run(2, {}, [same](const Rank& self) {
    const std::vector<std::byte> plain = pattern(0, 3, 1000);
    if (self.rank == 0) {
      EXPECT_EQ(self.link(1).canReference(plain.data(), plain.size()), same);
      if (same) {
        postReference(self, 1, plain.data(), plain.size(), digestOf(3));
        waitDrained(self, 1);
      } else {
        EXPECT_FALSE(self.link(1).tryPostReference(plain.data(), plain.size(), digestOf(3)));
      }
    } else if (same) {
      expectMessage(self, 0, plain, digestOf(3));
    }
    self.meet();
  });
}

// Registered memory without a file: read by the kernel's leave, at most a slot at a time.
TEST_P(References, RegisteredMemoryIsReadWhereTheSystemAllowsIt) {
  const bool same = sameProcess();
  const ShmSupport support = probeShm();
  run(2, {.slotBytes = 4096}, [&](const Rank& self) {
    std::vector<std::byte> plain = pattern(0, 4, 9000);
    const Result<uint64_t> registered = registerRange(plain.data(), plain.size());
    ASSERT_TRUE(registered);
    const bool readable = same || support.crossRead;
    if (self.rank == 0) {
      EXPECT_EQ(self.link(1).canReference(plain.data(), 4096), readable) << support.crossReadReason;
      EXPECT_EQ(self.link(1).canReference(plain.data(), 4097), same);
    }
    if (readable) {
      for (size_t offset = 0; offset < plain.size(); offset += 3000) {
        if (self.rank == 0) {
          postReference(self, 1, plain.data() + offset, 3000, digestOf(1));
        } else {
          const auto first = plain.begin() + static_cast<std::ptrdiff_t>(offset);
          expectMessage(self, 0, {first, first + 3000}, digestOf(1));
        }
      }
      if (self.rank == 0) {
        waitDrained(self, 1);
      }
    }
    EXPECT_TRUE(deregisterRange(*registered));
    EXPECT_EQ(self.link(1 - self.rank).canReference(plain.data(), 4096), same);
    self.meet();
  });
}

// A device's mapping, for example: here memory that nobody may read.
TEST_P(References, MemoryThatTheSystemKeepsFromPeersIsAFaultThatSaysWhatToDo) {
  if (sameProcess() || !probeShm().crossRead) {
    GTEST_SKIP() << "only between processes that read each other's memory";
  }
  constexpr size_t kBytes = 65536;
  run(2, {}, [](const Rank& self) {
    Link& link = self.link(1 - self.rank);
    if (self.rank == 0) {
      void* const closed = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(closed, MAP_FAILED);
      EXPECT_TRUE(link.tryPostOffer(static_cast<std::byte*>(closed), kBytes, digestOf(0)));
      self.meet();
      munmap(closed, kBytes);
      return;
    }
    std::vector<std::byte> got(kBytes);
    Arrival arrival;
    expectShown(self, 0);
    ASSERT_TRUE(link.tryReceive(arrival));
    EXPECT_FALSE(link.pull(got.data(), 0, kBytes));
    const Result<void> health = self.endpoint.progress(0);
    ASSERT_FALSE(health);
    EXPECT_NE(health.error().message.find("PEAL_DIRECT_READ=0"), std::string::npos) << health.error().message;
    EXPECT_EQ(self.endpoint.culpritRank(), 0);
    self.meet();
  });
}

// Any memory of another process, longer than a slot: copied by whom it is offered to, in pieces of his
// choice, as long as the sender has not taken it back.
TEST_P(References, OfferedMemoryIsPulled) {
  const bool possible = !sameProcess() && probeShm().crossRead;
  run(2, {.slotBytes = 4096, .slots = 2}, [possible](const Rank& self) {
    const std::vector<std::byte> plain = pattern(0, 6, 100000);
    Link& link = self.link(1 - self.rank);
    EXPECT_EQ(link.canOffer(plain.data(), plain.size()), possible);
    EXPECT_EQ(self.endpoint.reachesAll(), possible || sameProcess());
    if (!possible) {
      EXPECT_FALSE(link.tryPostOffer(plain.data(), plain.size(), digestOf(0)));
      return;
    }
    if (self.rank == 0) {
      EXPECT_TRUE(link.tryPostOffer(plain.data(), plain.size(), digestOf(0)));
      EXPECT_FALSE(link.drained());
      waitDrained(self, 1);
      EXPECT_TRUE(link.tryPostOffer(plain.data(), plain.size(), digestOf(1)));
      self.endpoint.farewell(0, "it has had enough");
      EXPECT_EQ(self.endpoint.withdraw(kTestLimitMs / 2), -1);
      self.meet();
      self.meet();
      return;
    }
    std::vector<std::byte> got(plain.size() + 1);
    for (const uint32_t number : {0, 1}) {
      Arrival arrival;
      expectShown(self, 0);
      ASSERT_TRUE(link.tryReceive(arrival));
      EXPECT_TRUE(arrival.remote && arrival.data == nullptr && arrival.bytes == plain.size());
      EXPECT_FALSE(link.pull(got.data(), 1, plain.size())) << "more than there is";
      if (number == 0) {
        EXPECT_TRUE(link.pull(got.data() + 70000, 70000, 30000));
        EXPECT_TRUE(link.pull(got.data(), 0, 70000));
        EXPECT_TRUE(std::equal(plain.begin(), plain.end(), got.begin()));
        link.release();
        self.meet();
      } else {
        EXPECT_FALSE(link.pull(got.data(), 0, plain.size())) << "it was taken back";
        self.meet();
      }
    }
  });
}

TEST_P(References, SwitchedOffMeansNone) {
  run(2, {.directRead = false}, [](const Rank& self) {
    const SharedBuffer buffer(0, 1, 1000);
    Link& link = self.link(1 - self.rank);
    EXPECT_FALSE(link.canReference(buffer.data, 1000));
    EXPECT_FALSE(link.tryPostReference(buffer.data, 1000, digestOf(1)));
    self.meet();
  });
}

// A freed region's address may come back with other contents: the peer must see the new one.
TEST_P(References, AFreedRegionIsNeverMistakenForItsSuccessor) {
  run(3, {}, [](const Rank& self) {
    for (int number = 0; number < 40; ++number) {
      const size_t bytes = 4096 * static_cast<size_t>(1 + number % 3);
      if (self.rank == 0) {
        const SharedBuffer buffer(0, number, bytes);
        postReference(self, 1, buffer.data, bytes, digestOf(number));
        postReference(self, 2, buffer.data, bytes, digestOf(number));
        waitDrained(self, 1);
        waitDrained(self, 2);
      } else {
        expectMessage(self, 0, pattern(0, number, bytes), digestOf(number));
      }
    }
  });
}

size_t mappings(const char* name) {
  size_t count = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[4096];
  while (maps != nullptr && fgets(line, sizeof line, maps) != nullptr) {
    count += strstr(line, name) != nullptr ? 1 : 0;
  }
  fclose(maps);
  return count;
}

TEST_P(References, PeersUnmapRegionsThatEnded) {
  const bool same = sameProcess();
  run(2, {}, [same](const Rank& self) {
    for (int number = 0; number < 20; ++number) {
      if (self.rank == 0) {
        const SharedBuffer buffer(0, number, 8192);
        postReference(self, 1, buffer.data, 8192, digestOf(number));
        waitDrained(self, 1);
      } else {
        expectMessage(self, 0, pattern(0, number, 8192), digestOf(number));
      }
    }
    EXPECT_TRUE(self.endpoint.progress(-1));
    self.meet();
    if (self.rank == 1 && !same) {
      EXPECT_TRUE(self.endpoint.progress(-1));
      EXPECT_EQ(mappings("peal-memory"), 0U);
    }
    self.meet();
  });
}

TEST_P(References, ManyRegionsBetweenAllPairs) {
  run(4, {.slots = 2}, [](const Rank& self) {
    constexpr int kBuffers = 30;
    std::vector<std::unique_ptr<SharedBuffer>> buffers;
    for (int number = 0; number < kBuffers; ++number) {
      buffers.push_back(std::make_unique<SharedBuffer>(self.rank, number, 5000));
    }
    for (int turn = 0; turn < 3 * kBuffers; ++turn) {
      const int number = turn % kBuffers;
      for (int peer = 0; peer < self.size; ++peer) {
        if (peer != self.rank) {
          postReference(self, peer, buffers[static_cast<size_t>(number)]->data + 7, 4000, digestOf(turn));
        }
      }
      for (int peer = 0; peer < self.size; ++peer) {
        if (peer != self.rank) {
          const std::vector<std::byte> whole = pattern(peer, number, 5000);
          expectMessage(self, peer, {whole.begin() + 7, whole.begin() + 4007}, digestOf(turn));
        }
      }
    }
    for (int peer = 0; peer < self.size; ++peer) {
      if (peer != self.rank) {
        waitDrained(self, peer);
      }
    }
  });
}

}  // namespace
}  // namespace peal::test

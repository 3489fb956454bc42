// Device memory that ranks share, on simulated machines: who frees what when ranks leave or die.
#include <cuda.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/cuda/memory_ranks.h"

namespace peal {
namespace {

using namespace test;

const Layout kThreads{{0, 0}, {0, 0}, {0, 0}};
const Layout kProcesses{{0, 0}, {1, 0}, {2, 0}};

TEST(DeviceMemory, AWindowOutlivesItsOwnerAsLongAsAPeerMayWriteIt) {
  for (const Layout& layout : {Layout{{0, 0}, {1, 0}}, Layout{{0, 0}, {0, 0}}, Layout{{0, 0}, {0, 1}}}) {
    for (const int first : {0, 1}) {
      runMemoryRanks({.layout = layout}, [&](MemoryRank& self) {
        ASSERT_NE(self.memory, nullptr) << self.error;
        if (self.rank == first) {
          self.memory->farewell(-1, "");
          self.destroy();
          self.meet();
          self.meet();
        } else {
          self.meet();
          writeWord(self.memory->peerWindow(first), 5);
          EXPECT_EQ(readWord(self.memory->peerWindow(first)), 5U);
          // Long enough for the watch thread to have looked.
          EXPECT_FALSE(eventually([&] { return self.memory->loss().has_value(); }, 50));
          EXPECT_EQ(readWord(self.memory->peerWindow(first)), 5U);
          self.meet();
        }
      });
    }
  }
}

TEST(DeviceMemory, AKilledPeerIsALossAndHoldsNothing) {
  runMemoryRanks(
      {.layout = kProcesses},
      [](MemoryRank& self) {
        ASSERT_NE(self.memory, nullptr) << self.error;
        DeviceBuffer buffer(4096);
        const Result<uint64_t> id = self.memory->registerBuffer(buffer.data(), 4096);
        ASSERT_TRUE(id);
        for (int peer = 0; peer < self.size; ++peer) {
          EXPECT_TRUE(eventually([&] { return self.memory->addressAt(peer, buffer.data(), 1) != 0; }));
        }
        self.meet();
        if (self.rank == 2) {
          raise(SIGKILL);
        }
        std::optional<DeviceMemory::Loss> loss;
        ASSERT_TRUE(eventually([&] { return (loss = self.memory->loss()).has_value(); }));
        EXPECT_EQ(loss->culpritRank, 2);
        EXPECT_NE(loss->error.message.find("rank 2"), std::string::npos) << loss->error.message;
        // Its window can still be written by kernels that are on their way.
        writeWord(self.memory->peerWindow(2), 1);
        // The living answer, the dead have let go.
        const Result<void> retired = self.memory->deregisterBuffer(*id, Deadline::afterMs(kFarMs));
        EXPECT_TRUE(retired) << retired.error().message;
        self.memory->farewell(2, "rank 2 died");
      },
      2);
}

TEST(DeviceMemory, AFaultyPeersReasonIsHeard) {
  for (const Layout& layout : {kProcesses, kThreads}) {
    runMemoryRanks({.layout = layout}, [](MemoryRank& self) {
      ASSERT_NE(self.memory, nullptr) << self.error;
      if (self.rank == 1) {
        self.memory->farewell(1, "its kernel met a deadline");
      } else {
        std::optional<DeviceMemory::Loss> loss;
        ASSERT_TRUE(eventually([&] { return (loss = self.memory->loss()).has_value(); }));
        EXPECT_EQ(loss->culpritRank, 1);
        EXPECT_NE(loss->error.message.find("its kernel met a deadline"), std::string::npos);
      }
      // Nobody frees a window that somebody else may still be writing.
      self.meet();
      if (self.rank == 0) {
        self.destroy();
      }
      self.meet();
      if (self.rank != 0) {
        writeWord(self.memory->peerWindow(0), 3);
      }
      self.meet();
    });
  }
}

TEST(DeviceMemory, AProcessMayExitWhileItsPeersHaveItsWindowMapped) {
  runMemoryRanks({.layout = kProcesses, .expectLive = true}, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    if (self.rank == 1) {
      self.destroy();
      self.meet();
      exit(0);  // static destructors end the lingering thread
    }
    self.meet();
    EXPECT_FALSE(self.memory->loss());
    self.destroy();
    EXPECT_TRUE(cuda::lingeringEnded(Deadline::afterMs(kFarMs)));
    EXPECT_EQ(joined(cudasim::liveObjects()), "");
  });
}

// Before a rank is destroyed: at its end its process will stay until all have met so often, when it has said
// all it has to say. For peers the rank has gone, and the process has not.
void meetAtExit(const MemoryRank& self, int meetings) {
  static std::function<void()> meet;
  meet = [&self, meetings] {
    for (int i = 0; i < meetings; ++i) {
      self.meet();
    }
  };
  atexit([] { meet(); });  // runs after what the first destroyed rank makes has been destroyed
}
void exitNow() { exit(::testing::Test::HasFailure() ? 1 : 0); }

// Rank 2 takes its time, and learns of no fault when the others have destroyed theirs and exit: rank 0 finds
// that rank 1 has read nothing of its last note.
TEST(DeviceMemory, ProcessesExitOneAfterTheOther) {
  runMemoryRanks({.layout = kProcesses, .expectLive = true}, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    if (self.rank == 1) {
      meetAtExit(self, 3);
      self.destroy();
      exitNow();
    }
    self.meet();  // rank 1 has gone
    if (self.rank == 0) {
      meetAtExit(self, 2);
      self.destroy();
      cuda::lingeringEnded(Deadline::afterMs(50));  // long enough for its watch thread to have looked
      exitNow();
    }
    self.meet();  // rank 0 has gone
    EXPECT_FALSE(eventually([&] { return self.memory->loss().has_value(); }, 50));
    self.meet();
    self.destroy();
    EXPECT_TRUE(cuda::lingeringEnded(Deadline::afterMs(kFarMs)));
    EXPECT_EQ(joined(cudasim::liveObjects()), "");
  });
}

// Stands for a call of the driver in which a rank's mapper is stuck until some time after its process begins
// to exit; the rank's watch thread waits for it meanwhile, and reads no notes.
std::atomic<bool> isStuck{false}, exits{false};
CUresult getRangeLate(CUdeviceptr* /*base*/, size_t* /*bytes*/, CUdeviceptr /*data*/) {
  isStuck = true;
  while (!exits) {
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return CUDA_ERROR_UNKNOWN;
}

// Notes that a rank does not read because it leaves are no fault of anybody.
TEST(DeviceMemory, NotesOnTheirWayToWhoeverExitsAreNoFault) {
  MemoryTest test{.layout = kProcesses, .expectLive = true};
  test.beforeConnect = [](int process) {
    if (process == 1) {
      cudasim::setDriverFunction("cuMemGetAddressRange", reinterpret_cast<void*>(&getRangeLate));
    }
  };
  runMemoryRanks(test, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    DeviceBuffer buffer(4096);
    std::vector<uint64_t> ids;
    const auto registerSome = [&](size_t count) {
      for (size_t i = 0; self.rank == 0 && i < count; ++i) {
        const Result<uint64_t> id = self.memory->registerBuffer(buffer.data() + 16 * i, 16);
        ASSERT_TRUE(id) << id.error().message;
        ids.push_back(*id);
      }
    };
    registerSome(1);
    if (self.rank == 1) {
      meetAtExit(self, 2);
      EXPECT_TRUE(eventually([] { return isStuck.load(); }));
      self.destroy();
    }
    self.meet();
    registerSome(200);  // more than links hold, and than the watch thread reads before it begins to wait
    self.meet();
    if (self.rank == 1) {
      exits = true;
      exitNow();
    }
    self.meet();  // rank 1 has gone
    EXPECT_FALSE(eventually([&] { return self.memory->loss().has_value(); }, 50));
    self.meet();
    for (const uint64_t id : ids) {
      const Result<void> retired = self.memory->deregisterBuffer(id, Deadline::afterMs(kFarMs));
      EXPECT_TRUE(retired) << retired.error().message;
    }
    EXPECT_FALSE(self.memory->loss());
  });
}

// A process whose end runs no destructors, as that of a forked Python worker.
TEST(DeviceMemory, AProcessMayEndAtOnceWhenItsRankHasLeft) {
  runMemoryRanks({.layout = kProcesses, .expectLive = true}, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    if (self.rank == 1) {
      self.destroy();
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    EXPECT_FALSE(eventually([&] { return self.memory->loss().has_value(); }, 100));
  });
}

}  // namespace
}  // namespace peal

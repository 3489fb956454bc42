// Device memory that ranks share, on simulated machines: how they reach each other, when all of them fall
// back to host memory, registered buffers. device_memory_end_test.cpp has who leaves and who dies.
#include <cuda.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/cuda/memory_ranks.h"
#include "transports/cuda_ipc/card.h"

namespace peal {
namespace {

using namespace test;

const Layout kThreadsOneDevice{{0, 0}, {0, 0}, {0, 0}};
const Layout kThreadsFourDevices{{0, 0}, {0, 1}, {0, 2}, {0, 3}};
const Layout kProcessesOneDevice{{0, 0}, {1, 0}, {2, 0}};
const Layout kProcessesTwoDevices{{0, 0}, {1, 1}};
const Layout kMixed{{0, 0}, {0, 1}, {1, 0}, {1, 1}};

// Every rank writes its word into every window, its own included; every rank finds all of them.
void expectWindowsWork(const MemoryRank& self) {
  for (int peer = 0; peer < self.size; ++peer) {
    EXPECT_EQ(readWord(self.memory->peerWindow(peer)), 0U) << "a window does not begin with zeros";
  }
  self.meet();
  for (int peer = 0; peer < self.size; ++peer) {
    writeWord(self.memory->peerWindow(peer) + 512 + 8 * self.rank,
              static_cast<uint64_t>(100 * self.rank + peer));
  }
  self.meet();
  for (int peer = 0; peer < self.size; ++peer) {
    EXPECT_EQ(readWord(self.memory->window() + 512 + 8 * peer),
              static_cast<uint64_t>(100 * peer + self.rank));
  }
}

// ---- reach ----

struct ReachCase {
  const char* name;
  Layout layout;
};
void PrintTo(const ReachCase& row, std::ostream* stream) { *stream << row.name; }

class DeviceMemoryReach : public ::testing::TestWithParam<ReachCase> {};

TEST_P(DeviceMemoryReach, IsTheNearestAndWorks) {
  const Layout layout = GetParam().layout;
  runMemoryRanks({.layout = layout}, [&](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    const Place mine = layout[static_cast<size_t>(self.rank)];
    GpuPath slowest = GpuPath::SameDevice;
    for (int peer = 0; peer < self.size; ++peer) {
      const Place theirs = layout[static_cast<size_t>(peer)];
      slowest = theirs.device == layout[0].device ? slowest : GpuPath::Nvlink;
      const Reach expected = peer == self.rank                ? Reach::Self
                             : mine.process != theirs.process ? Reach::Ipc
                             : mine.device == theirs.device   ? Reach::SameDevice
                                                              : Reach::PeerAccess;
      EXPECT_EQ(self.memory->reach(peer), expected) << "of rank " << peer;
    }
    EXPECT_EQ(self.memory->peerWindow(self.rank), self.memory->window());
    EXPECT_EQ(self.memory->path(), slowest);
    EXPECT_FALSE(self.memory->loss());
    expectWindowsWork(self);
    self.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, DeviceMemoryReach,
                         ::testing::Values(ReachCase{"one", {{0, 0}}},
                                           ReachCase{"threads_one_device", kThreadsOneDevice},
                                           ReachCase{"threads_four_devices", kThreadsFourDevices},
                                           ReachCase{"processes_one_device", kProcessesOneDevice},
                                           ReachCase{"processes_two_devices", kProcessesTwoDevices},
                                           ReachCase{"mixed", kMixed}),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(DeviceMemory, LinesAreTornWhereOnePairIsNotOnNvlink) {
  MemoryTest test{.layout = kThreadsFourDevices};
  test.machine.p2pAttribute = [](cudaDeviceP2PAttr attribute, int src, int dst) {
    return attribute == cudaDevP2PAttrNativeAtomicSupported && src + dst == 5 ? 0 : 1;
  };
  runMemoryRanks(test, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    EXPECT_EQ(self.memory->path(), GpuPath::Pcie) << "also on ranks that have NVLink to everybody";
    EXPECT_FALSE(keepsLinesWhole(self.memory->path()));
    self.meet();
  });
}

TEST(DeviceMemory, ReachesADeviceThatIsHiddenFromTheProcess) {
  MemoryTest test{.layout = {{0, 0}, {1, 0}}};
  test.beforeConnect = [machine = test.machine](int process) {
    cudasim::Machine own = machine;
    own.visible = {process};
    cudasim::restart(own);
  };
  runMemoryRanks(test, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    EXPECT_EQ(self.memory->reach(1 - self.rank), Reach::Ipc);
    EXPECT_EQ(self.memory->path(), GpuPath::Pcie) << "nobody can say what leads there";
    expectWindowsWork(self);
    self.meet();
  });
}

// ---- falling back ----

void expectHostStaging(const MemoryTest& test, const std::string& reason) {
  runMemoryRanks(test, [&](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    for (int peer = 0; peer < self.size; ++peer) {
      EXPECT_EQ(self.memory->reach(peer), peer == self.rank ? Reach::Self : Reach::HostStaging);
    }
    EXPECT_EQ(self.memory->path(), GpuPath::HostMemory);
    EXPECT_NE(self.memory->sentence().find("through host memory"), std::string::npos)
        << self.memory->sentence();
    EXPECT_NE(self.memory->sentence().find(reason), std::string::npos) << self.memory->sentence();
    expectWindowsWork(self);
    // A buffer can be registered, and nobody gets its address.
    void* data = nullptr;
    ASSERT_EQ(cudaMalloc(&data, 4096), cudaSuccess);
    const Result<uint64_t> id = self.memory->registerBuffer(data, 4096);
    ASSERT_TRUE(id) << id.error().message;
    self.meet();
    EXPECT_EQ(self.memory->addressAt((self.rank + 1) % self.size, data, 4096), 0U);
    EXPECT_TRUE(self.memory->deregisterBuffer(*id, Deadline::afterMs(kFarMs)));
    EXPECT_EQ(cudaFree(data), cudaSuccess);
    self.meet();
  });
}

TEST(DeviceMemory, AllFallBackWhereOnePairHasNoPeerAccess) {
  for (const Layout& layout : {kThreadsFourDevices, Layout{{0, 0}, {1, 2}, {2, 1}}}) {
    MemoryTest test{.layout = layout};
    test.machine.peerAccess = [](int device, int peer) { return !(device == 2 && peer == 1); };
    expectHostStaging(test, "device 2 has no peer access to device 1");
  }
}

TEST(DeviceMemory, ProcessesFallBackWithoutIpc) {
  MemoryTest test{.layout = kMixed};
  test.machine.ipc = false;
  expectHostStaging(test, "cudaIpcGetMemHandle");
}

TEST(DeviceMemory, ThreadsOfOneProcessNeedNoIpc) {
  MemoryTest test{.layout = kThreadsOneDevice};
  test.machine.ipc = false;
  runMemoryRanks(test, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    EXPECT_EQ(self.memory->reach((self.rank + 1) % self.size), Reach::SameDevice);
    expectWindowsWork(self);
    self.meet();
  });
}

TEST(DeviceMemory, AllFallBackWhereACopyOfTheTrialFails) {
  MemoryTest test{.layout = kProcessesOneDevice};
  test.beforeConnect = [](int process) {
    if (process == 1) {
      cudasim::failCall("cudaMemcpyAsync", 1, cudaErrorUnknown);
    }
  };
  expectHostStaging(test, "rank 1: writing into the window of rank 0");
}

// Lets rank 0 hear another token of rank 1's window, so that what it writes there is not what rank 1 expects:
// as if writes had gone astray.
class AstrayExchange : public Exchange {
 public:
  explicit AstrayExchange(Exchange& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Result<std::vector<std::vector<std::byte>>> allGather(const std::vector<std::byte>& mine) override {
    auto all = inner_.allGather(mine);
    if (all && rank() == 0 && mine.size() == sizeof(cuda::Card)) {
      (*all)[1][offsetof(cuda::Card, window)] ^= std::byte{1};
    }
    return all;
  }

 private:
  Exchange& inner_;
};

TEST(DeviceMemory, AllFallBackWhereWritesDoNotArrive) {
  MemoryTest test{.layout = kProcessesOneDevice};
  test.exchange = [](Exchange& inner) { return std::make_unique<AstrayExchange>(inner); };
  expectHostStaging(test, "rank 1: what rank 0 wrote into this window arrived as");
}

// ---- errors that all ranks get ----

void expectAllFail(const MemoryTest& test, const std::string& reason) {
  runMemoryRanks(test, [&](MemoryRank& self) {
    EXPECT_EQ(self.memory, nullptr);
    EXPECT_NE(self.error.find(reason), std::string::npos) << self.error;
  });
}

TEST(DeviceMemory, OneRankWithoutMemoryFailsAll) {
  MemoryTest test{.layout = kProcessesTwoDevices};
  test.beforeConnect = [](int process) {
    if (process == 1) {
      cudasim::failCall("cudaMalloc", 1, cudaErrorMemoryAllocation);
    }
  };
  expectAllFail(test, "rank 1: cudaMalloc of 4096 bytes, device 1");
}

TEST(DeviceMemory, WindowsOfDifferentSizesFailAll) {
  MemoryTest test{.layout = kProcessesTwoDevices};
  test.windowOf = [](int rank, size_t bytes) { return bytes + 64 * rank; };
  expectAllFail(test, "windows have ");
}

TEST(DeviceMemory, NeitherDeviceNorHostMemoryFailsAll) {
  MemoryTest test{.layout = kProcessesTwoDevices};
  test.machine.ipc = false;
  test.beforeConnect = [](int process) {
    if (process == 0) {
      cudasim::failCall("cudaHostRegister", 1, cudaErrorMemoryAllocation);
    }
  };
  expectAllFail(test, "neither can pinned host memory: rank 0: cudaHostRegister");
}

// ---- registered buffers ----

TEST(DeviceMemory, PeersReadRegisteredBuffersInPlace) {
  for (const Layout& layout : {kProcessesOneDevice, kProcessesTwoDevices, kThreadsFourDevices, kMixed}) {
    runMemoryRanks({.layout = layout}, [](MemoryRank& self) {
      ASSERT_NE(self.memory, nullptr) << self.error;
      DeviceBuffer buffer(1 << 16);
      std::byte* const begin = buffer.data() + 4096;
      const int peer = (self.rank + 1) % self.size;
      const Result<uint64_t> id = self.memory->registerBuffer(begin, 8192);
      ASSERT_TRUE(id) << id.error().message;
      writeWord(begin + 1024, static_cast<uint64_t>(1000 + self.rank));
      for (int other = 0; other < self.size; ++other) {
        EXPECT_TRUE(eventually([&] { return self.memory->addressAt(other, begin, 8192) != 0; })) << other;
      }
      const uint64_t at = self.memory->addressAt(peer, begin + 1024, 8);
      EXPECT_EQ(at, self.memory->addressAt(peer, begin, 8192) + 1024);
      EXPECT_NE(self.memory->addressAt(peer, begin + 8192, 0), 0U);
      EXPECT_EQ(self.memory->addressAt(peer, begin, 8193), 0U);
      EXPECT_EQ(self.memory->addressAt(peer, begin - 1, 8), 0U);
      EXPECT_EQ(self.memory->addressAt(peer, begin + 8190, 8), 0U);
      // The former rank reads ours: it hears where.
      const std::vector<uint64_t> addresses = self.gather(at);
      const int former = (self.rank + self.size - 1) % self.size;
      EXPECT_EQ(readWord(reinterpret_cast<void*>(addresses[static_cast<size_t>(former)])),
                static_cast<uint64_t>(1000 + former));
      self.meet();
      EXPECT_TRUE(self.memory->deregisterBuffer(*id, Deadline::afterMs(kFarMs)));
      EXPECT_EQ(self.memory->addressAt(peer, begin, 8), 0U);
      const Result<void> again = self.memory->deregisterBuffer(*id, Deadline::afterMs(kFarMs));
      EXPECT_FALSE(again);
      // The peers' mappings are closed, so what comes to the same addresses may be registered anew.
      const Result<uint64_t> other = self.memory->registerBuffer(buffer.data(), 1 << 16);
      ASSERT_TRUE(other);
      EXPECT_NE(*other, *id);
      EXPECT_TRUE(eventually([&] { return self.memory->addressAt(peer, buffer.data(), 1 << 16) != 0; }));
      self.meet();
      // Left registered: the destructor retires it before the buffer goes.
      self.destroy();
    });
  }
}

TEST(DeviceMemory, SaysWhatCannotBeRegistered) {
  runMemoryRanks({.layout = kProcessesTwoDevices}, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    const auto expectRefused = [&](const void* data, size_t bytes, const std::string& reason) {
      const Result<uint64_t> id = self.memory->registerBuffer(data, bytes);
      ASSERT_FALSE(id);
      EXPECT_NE(id.error().message.find(reason), std::string::npos) << id.error().message;
    };
    uint64_t onStack = 0;
    void* pinned = nullptr;
    ASSERT_EQ(cudaHostAlloc(&pinned, 64, cudaHostAllocDefault), cudaSuccess);
    expectRefused(&onStack, 8, "host memory that CUDA does not know");
    expectRefused(pinned, 64, "pinned host memory");
    EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
    ASSERT_EQ(cudaSetDevice(1 - self.device), cudaSuccess);
    {
      DeviceBuffer elsewhere(64);
      expectRefused(elsewhere.data(), 64, "memory of device " + std::to_string(1 - self.device));
    }
    ASSERT_EQ(cudaSetDevice(self.device), cudaSuccess);
    DeviceBuffer buffer(1000);
    expectRefused(buffer.data(), 0, "0 bytes");
    expectRefused(buffer.data() + 100, 901, "ends 900 bytes after that address");
    const Result<void> unknown = self.memory->deregisterBuffer(77, Deadline::afterMs(100));
    ASSERT_FALSE(unknown);
    EXPECT_NE(unknown.error().message.find("77"), std::string::npos);
    cudasim::failCall("cudaIpcGetMemHandle", 1, cudaErrorInvalidValue);
    expectRefused(buffer.data(), 1000, "cannot be mapped by other devices or processes");
    EXPECT_TRUE(self.memory->registerBuffer(buffer.data(), 1000));
    self.meet();
    self.destroy();
  });
}

TEST(DeviceMemory, TheNewestRegistrationOfAnAddressCounts) {
  runMemoryRanks({.layout = kProcessesTwoDevices}, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    const int peer = 1 - self.rank;
    DeviceBuffer buffer(8192);
    const Result<uint64_t> whole = self.memory->registerBuffer(buffer.data(), 8192);
    ASSERT_TRUE(whole);
    EXPECT_TRUE(eventually([&] { return self.memory->addressAt(peer, buffer.data(), 1) != 0; }));
    self.meet();
    // The peers cannot map the next one, so neither may they be given the address of the former.
    cudasim::failCall("cudaIpcOpenMemHandle", 1, cudaErrorMapBufferObjectFailed);
    self.meet();
    const Result<uint64_t> front = self.memory->registerBuffer(buffer.data(), 4096);
    ASSERT_TRUE(front);
    EXPECT_EQ(self.memory->addressAt(peer, buffer.data(), 1), 0U);
    EXPECT_NE(self.memory->addressAt(peer, buffer.data() + 4096, 1), 0U);
    EXPECT_TRUE(self.memory->deregisterBuffer(*front, Deadline::afterMs(kFarMs)));
    EXPECT_NE(self.memory->addressAt(peer, buffer.data(), 1), 0U);
    EXPECT_TRUE(self.memory->deregisterBuffer(*whole, Deadline::afterMs(kFarMs)));
    self.meet();
  });
}

TEST(DeviceMemory, APeerThatCannotMapGetsCopies) {
  MemoryTest test{.layout = kProcessesTwoDevices};
  runMemoryRanks(test, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    if (self.rank == 1) {
      cudasim::failCall("cudaIpcOpenMemHandle", 1, cudaErrorMapBufferObjectFailed);
    }
    self.meet();
    DeviceBuffer first(4096);
    DeviceBuffer second(4096);
    if (self.rank == 0) {
      const Result<uint64_t> one = self.memory->registerBuffer(first.data(), 4096);
      const Result<uint64_t> two = self.memory->registerBuffer(second.data(), 4096);
      ASSERT_TRUE(one && two);
      // Notes keep their order: once the second is mapped, the first has been tried.
      EXPECT_TRUE(eventually([&] { return self.memory->addressAt(1, second.data(), 4096) != 0; }));
      EXPECT_EQ(self.memory->addressAt(1, first.data(), 4096), 0U);
      EXPECT_TRUE(self.memory->deregisterBuffer(*one, Deadline::afterMs(kFarMs)));
      EXPECT_TRUE(self.memory->deregisterBuffer(*two, Deadline::afterMs(kFarMs)));
    }
    self.meet();
    self.destroy();
  });
}

TEST(DeviceMemory, SaysThatABufferWasFreedWhileRegistered) {
  for (const Layout& layout : {kProcessesOneDevice, kThreadsOneDevice, Layout{{0, 0}}}) {
    runMemoryRanks({.layout = layout}, [](MemoryRank& self) {
      ASSERT_NE(self.memory, nullptr) << self.error;
      DeviceBuffer buffer(4096);
      const std::byte* const data = buffer.data();
      const Result<uint64_t> id = self.memory->registerBuffer(data, 4096);
      ASSERT_TRUE(id);
      buffer.free();
      const Result<void> result = self.memory->deregisterBuffer(*id, Deadline::afterMs(kFarMs));
      ASSERT_FALSE(result);
      EXPECT_NE(result.error().message.find("was freed while it was registered"), std::string::npos);
      EXPECT_EQ(self.memory->addressAt((self.rank + 1) % self.size, data, 4096), 0U);
      self.meet();
    });
  }
}

// ---- errors injected into every call ----

// Connects, registers, deregisters and leaves while the n-th CUDA call of rank 0 fails. Returns the calls
// that rank 0's process made.
uint64_t runWithFailure(const Layout& layout, bool ipc, uint64_t n) {
  MemoryTest test{.layout = layout};
  test.machine.ipc = ipc;
  test.injectErrors = [n](int rank) {
    if (rank == 0) {
      cudasim::countCalls();
      if (n > 0) {
        cudasim::failCall("*", n);
      }
    }
  };
  const std::vector<ChildResult> results = runMemoryRanks(test, [&](MemoryRank& self) {
    const uint64_t connected = self.memory == nullptr ? 0 : 1;
    EXPECT_TRUE(connected != 0 || !self.error.empty());
    const std::vector<uint64_t> all = self.gather(connected);
    EXPECT_EQ(all, std::vector<uint64_t>(all.size(), connected)) << "all ranks connect, or none";
    const auto staged = [&] {
      const Reach reach = self.memory == nullptr ? Reach::Self : self.memory->reach(1 - self.rank);
      return uint64_t{reach == Reach::HostStaging};
    };
    const std::vector<uint64_t> paths = self.gather(staged());
    EXPECT_EQ(paths, std::vector<uint64_t>(paths.size(), staged())) << "all ranks take the same path";
    void* data = nullptr;
    if (self.memory != nullptr && cudaMalloc(&data, 4096) == cudaSuccess) {
      const Result<uint64_t> id = self.memory->registerBuffer(data, 4096);
      EXPECT_TRUE(id || !id.error().message.empty());
      if (id) {
        // Mapped or not: where an error was injected, nobody says which.
        eventually([&] { return self.memory->addressAt(1 - self.rank, data, 1) != 0; },
                   staged() != 0 ? 0 : 20);
        const Result<void> retired = self.memory->deregisterBuffer(*id, Deadline::afterMs(5000));
        EXPECT_TRUE(retired || !retired.error().message.empty());
        EXPECT_EQ(self.memory->addressAt(1 - self.rank, data, 1), 0U);
      }
      cudaFree(data);
    }
    self.meet();
    self.destroy();
    EXPECT_TRUE(cuda::lingeringEnded(Deadline::afterMs(kFarMs)));
    if (self.rank == 0) {
      self.child.say(std::to_string(cudasim::callCount()));
    }
    self.meet();
  });
  return results[0].message.empty() ? 0 : std::stoull(results[0].message);
}

TEST(DeviceMemory, AnErrorInAnyCallHarmsNobody) {
  struct Case {
    Layout layout;
    bool ipc;
  };
  const Layout processes{{0, 0}, {1, 1}};
  const Layout threads{{0, 0}, {0, 1}};
  for (const Case& row : {Case{processes, true}, Case{processes, false}, Case{threads, true}}) {
    const uint64_t calls = runWithFailure(row.layout, row.ipc, 0);
    ASSERT_GT(calls, 20U);
    // The runs mostly wait for each other's processes to get a turn: several at a time.
    constexpr int kAtATime = 6;
    expectAllSucceeded(runProcesses(kAtATime, std::chrono::minutes(2), [&](const Child& child) {
      for (uint64_t n = 1 + static_cast<uint64_t>(child.index()); n <= calls && !HasFailure();
           n += kAtATime) {
        SCOPED_TRACE("call " + std::to_string(n) + " of " + std::to_string(calls));
        runWithFailure(row.layout, row.ipc, n);
      }
      return 0;
    }));
  }
}

// ---- a captured stream elsewhere ----

TEST(DeviceMemory, ConnectingAndRegisteringLeaveACaptureAlone) {
  MemoryTest test{.layout = kProcessesTwoDevices};
  runMemoryRanks(test, [](MemoryRank& self) {
    ASSERT_NE(self.memory, nullptr) << self.error;
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    DeviceBuffer buffer(4096);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    self.meet();
    const Result<uint64_t> id = self.memory->registerBuffer(buffer.data(), 4096);
    EXPECT_TRUE(id) << id.error().message;
    EXPECT_TRUE(eventually([&] { return self.memory->addressAt(1 - self.rank, buffer.data(), 1) != 0; }));
    EXPECT_TRUE(self.memory->deregisterBuffer(*id, Deadline::afterMs(kFarMs)));
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    self.meet();
  });
}

}  // namespace
}  // namespace peal

// Registered memory that consists of pieces of cuMemCreate: peers get it by handles, on other devices of one
// process and in other processes; what cannot be passed on is refused with the reason; failures leave copies.
#include "tests/cuda/gpu_ranks.h"
#include "tests/cuda/memory_ranks.h"
#include "tests/cuda/piece_buffer.h"
#include "tests/cudasim/core/memory.h"

namespace {

using namespace peal;
using namespace peal::test;

const Layout kProcesses{{0, 0}, {1, 1}, {2, 0}};
const Layout kThreads{{0, 0}, {0, 1}, {0, 2}};
const Layout kMixed{{0, 0}, {0, 1}, {1, 0}, {1, 1}};

// The registered range lies across two pieces.
constexpr size_t kBegin = PieceBuffer::kPieceBytes - 4096;

TEST(Pieces, PeersReadThemInPlace) {
  for (const Layout& layout : {kProcesses, kThreads, kMixed}) {
    runMemoryRanks({.layout = layout}, [](MemoryRank& self) {
      ASSERT_NE(self.memory, nullptr) << self.error;
      {
        const PieceBuffer buffer(self.device, 3, Exportable::Yes);
        std::byte* const begin = buffer.data() + kBegin;
        const Result<uint64_t> id = self.memory->registerBuffer(begin, 8192);
        ASSERT_TRUE(id) << id.error().message;
        writeWord(begin, static_cast<uint64_t>(1000 + self.rank));
        writeWord(begin + 8184, static_cast<uint64_t>(2000 + self.rank));
        const int peer = (self.rank + 1) % self.size;
        EXPECT_TRUE(eventually([&] { return self.memory->addressAt(peer, begin, 8192) != 0; }));
        const std::vector<uint64_t> addresses = self.gather(self.memory->addressAt(peer, begin, 8192));
        const auto former = static_cast<uint64_t>((self.rank + self.size - 1) % self.size);
        auto* const there = reinterpret_cast<std::byte*>(addresses[former]);
        ASSERT_NE(there, nullptr);
        for (const size_t offset : {size_t{0}, size_t{8184}}) {
          EXPECT_EQ(readWord(there + offset), (offset == 0 ? 1000 : 2000) + former);
          const auto allocation = cudasim::findAllocation(there + offset);
          ASSERT_TRUE(allocation);
          EXPECT_NE(allocation->devices >> self.device & 1, 0U) << "kernels of this rank may not read it";
        }
        self.meet();
        EXPECT_TRUE(self.memory->deregisterBuffer(*id, Deadline::afterMs(kFarMs)));
        self.meet();
        // Left registered: the destructor asks the peers to close it.
        EXPECT_TRUE(self.memory->registerBuffer(buffer.data(), buffer.bytes()));
        EXPECT_TRUE(eventually([&] { return self.memory->addressAt(peer, begin, 8192) != 0; }));
        self.meet();
        self.destroy();
      }
    });
  }
}

TEST(Pieces, SayWhatCannotBePassedOn) {
  for (const Layout& layout : {kProcesses, kThreads}) {
    runMemoryRanks({.layout = layout}, [&](MemoryRank& self) {
      ASSERT_NE(self.memory, nullptr) << self.error;
      const auto expectRefused = [&](const PieceBuffer& buffer, size_t bytes, const std::string& reason) {
        const Result<uint64_t> id = self.memory->registerBuffer(buffer.data(), bytes);
        ASSERT_FALSE(id);
        EXPECT_NE(id.error().message.find(reason), std::string::npos) << id.error().message;
      };
      const PieceBuffer kept(self.device, 1, Exportable::No);
      if (layout[1].process != 0) {
        expectRefused(kept, kept.bytes(), "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
      } else {  // a process needs no leave to map its own memory
        const Result<uint64_t> id = self.memory->registerBuffer(kept.data(), kept.bytes());
        ASSERT_TRUE(id) << id.error().message;
        EXPECT_TRUE(self.memory->deregisterBuffer(*id, Deadline::afterMs(kFarMs)));
      }
      const PieceBuffer many(self.device, 65, Exportable::Yes, 1);
      expectRefused(many, many.bytes(), "more than 64 pieces");
      expectRefused(many, many.bytes() + 1, "do not lie in one allocation");
      self.meet();
      self.destroy();
    });
  }
}

// Each call that the owner or the importer needs fails once. The owner hears it, or its peer gets copies.
TEST(Pieces, SurviveEveryFailure) {
  for (const char* call : {"cuMemRetainAllocationHandle", "cuMemGetAllocationPropertiesFromHandle",
                           "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
                           "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemGetAddressRange"}) {
    runMemoryRanks({.layout = {{0, 0}, {1, 0}, {1, 1}}}, [&](MemoryRank& self) {
      ASSERT_NE(self.memory, nullptr) << self.error;
      {
        const PieceBuffer buffer(self.device, 2, Exportable::Yes);
        self.meet();
        if (self.rank < 2) {
          cudasim::failCall(call, 1);
        }
        const Result<uint64_t> id = self.memory->registerBuffer(buffer.data(), buffer.bytes());
        self.meet();
        cudasim::failNothing();
        self.meet();  // nobody's calls fail any more
        if (id) {
          EXPECT_TRUE(self.memory->deregisterBuffer(*id, Deadline::afterMs(kFarMs))) << call;
        } else {
          EXPECT_NE(id.error().message.find("cuMem"), std::string::npos) << id.error().message;
        }
        // Nothing stays behind: the same works now.
        const Result<uint64_t> again = self.memory->registerBuffer(buffer.data(), buffer.bytes());
        ASSERT_TRUE(again) << again.error().message;
        EXPECT_TRUE(eventually(
            [&] { return self.memory->addressAt((self.rank + 1) % self.size, buffer.data(), 8) != 0; }));
        self.meet();
        EXPECT_TRUE(self.memory->deregisterBuffer(*again, Deadline::afterMs(kFarMs)));
        self.meet();
        self.destroy();
      }
    });
  }
}

// Whole collectives, whose kernels read peers' pieces.
void allReducePieces(pealComm_t comm, int rank, int device) {
  constexpr size_t kElements = 20000;
  const GpuStream stream(device);
  const PieceBuffer buffer(device, 2, Exportable::Yes);
  auto* const data = reinterpret_cast<float*>(buffer.data() + PieceBuffer::kPieceBytes) - 512;
  void* handle = nullptr;
  PEAL_EXPECT_OK(pealCommRegister(comm, data, kElements * sizeof(float), &handle));
  std::this_thread::sleep_for(std::chrono::milliseconds(60));  // mostly mapped by then; right in any case
  const std::vector<float> ones(kElements, static_cast<float>(rank + 1));
  for (int turn = 0; turn < 3; ++turn) {
    for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 512}, {512, kElements}}) {
      cudaOk(cudaMemcpy(data + begin, ones.data(), (end - begin) * sizeof(float), cudaMemcpyHostToDevice),
             "copy");
    }
    PEAL_EXPECT_OK(pealAllReduce(data, data, kElements, pealFloat32, pealSum, comm, stream.peal()));
    stream.synchronize();
    std::vector<float> sums(kElements);
    cudaOk(cudaMemcpy(sums.data(), data, 512 * sizeof(float), cudaMemcpyDeviceToHost), "copy");
    cudaOk(
        cudaMemcpy(sums.data() + 512, data + 512, (kElements - 512) * sizeof(float), cudaMemcpyDeviceToHost),
        "copy");
    EXPECT_EQ(sums, std::vector<float>(kElements, 3.0F));
  }
  PEAL_EXPECT_OK(pealCommDeregister(comm, handle));
  PEAL_EXPECT_OK(pealCommDestroy(comm));
}

Environment bulk() {
  return with(smallGpu(), {{"PEAL_PROTOCOL", "simple"}, {"PEAL_ALGO", "ring"}, {"PEAL_SLOT_BYTES", "16384"}});
}

TEST(Pieces, CollectivesReadThemOnOtherDevices) {
  inProcess(bulk(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    onThreads(2, [&](int rank) { allReducePieces(comms[static_cast<size_t>(rank)], rank, rank); });
  });
}

TEST(Pieces, CollectivesReadThemInOtherProcesses) {
  SharedValue<Meeting> meeting;
  expectAllSucceeded(runProcesses(2, kHangs, [&](const Child& child) {
    enter(bulk(), {});
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.device = child.index();
    pealComm_t comm = nullptr;
    PEAL_EXPECT_OK(meeting->join(&comm, child.index(), 2, &config));
    allReducePieces(comm, child.index(), child.index());
    expectNothingAlive();
    return 0;
  }));
}

}  // namespace

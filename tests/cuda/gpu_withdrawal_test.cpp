// Buffers that peers read in place, and an abort: who has shown them may free them when it returns.
#include <atomic>
#include <optional>

#include "tests/cuda/gpu_ranks.h"

namespace {

using namespace peal::test;

// Rank 0 shows rank 1 its registered buffer, in as many messages as there are slots, aborts while rank 1's
// kernel reads it, and frees it. The simulator traps whoever reads on. Rank 1's own buffer lies so that its
// kernel moves single bytes, which takes the simulator long enough.
constexpr size_t kShownBytes = (size_t{8} << 20) - 4096;  // in 8 messages
enum class Showing : uint8_t { Send, GraphReads, GraphShows };

Environment showing() {
  return with(smallGpu(), {{"PEAL_CHANNELS", "1"},
                           {"PEAL_SLOTS", "8"},
                           {"PEAL_SLOT_BYTES", "1048576"},
                           {"PEAL_PROTOCOL", "simple"}});
}

void showPart(pealComm_t comm, int rank, void* data, pealStream_t stream) {
  if (rank == 0) {
    PEAL_EXPECT_OK(pealSend(data, kShownBytes, pealInt8, 1, comm, stream));
  } else {
    PEAL_EXPECT_OK(pealRecv(data, kShownBytes, pealInt8, 0, comm, stream));
  }
}

// Until peers have mapped what this rank has registered: what is said of buffers keeps its order.
void awaitMapping(pealComm_t comm) {
  const GpuBuffer other(0, 4096);
  void* handle = nullptr;
  PEAL_EXPECT_OK(pealCommRegister(comm, other.data(), other.bytes(), &handle));
  PEAL_EXPECT_OK(pealCommDeregister(comm, handle));
}

// A graph of one call, launched once.
class Launched {
 public:
  Launched(const GpuStream& stream, const std::function<void()>& call) {
    cudaOk(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin");
    call();
    cudaOk(cudaStreamEndCapture(stream.get(), &graph_), "end");
    cudaOk(cudaGraphInstantiate(&launchable_, graph_, 0), "instantiate");
    cudaOk(cudaGraphLaunch(launchable_, stream.get()), "launch");
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
  ~Launched() {
    cudaOk(cudaGraphExecDestroy(launchable_), "cudaGraphExecDestroy");
    cudaOk(cudaGraphDestroy(graph_), "cudaGraphDestroy");
    peal::cudasim::settle();
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t launchable_ = nullptr;
};

void showAndAbort(Showing how, pealComm_t comm, const std::atomic<int>& reading) {
  {
    std::optional<Launched> graph;  // lives longer than the buffer
    const GpuStream stream(0);
    const GpuBuffer buffer(0, std::vector<std::byte>(kShownBytes, std::byte{7}));
    void* handle = nullptr;
    PEAL_EXPECT_OK(pealCommRegister(comm, buffer.data(), kShownBytes, &handle));
    awaitMapping(comm);
    const auto call = [&] { showPart(comm, 0, buffer.data(), stream.peal()); };
    how == Showing::GraphShows ? static_cast<void>(graph.emplace(stream, call)) : call();
    while (reading.load() == 0) {
      std::this_thread::yield();
    }
    PEAL_EXPECT_OK(pealCommAbort(comm));
  }
  destroyAll(initAll({0}));  // frees what a graph had kept
}

void readInPlace(Showing how, pealComm_t comm, std::atomic<int>& reading) {
  const GpuStream stream(1);
  const GpuBuffer buffer(1, std::vector<std::byte>(kShownBytes));
  std::byte* const data = buffer.data() + 1;
  {
    std::optional<Launched> graph;
    const auto call = [&] { showPart(comm, 1, data, stream.peal()); };
    how == Showing::GraphReads ? static_cast<void>(graph.emplace(stream, call)) : call();
    for (char first = 0; first == 0;) {
      CUDA_OK(cudaMemcpy(&first, data, 1, cudaMemcpyDeviceToHost));
    }
    reading.store(1);
    stream.synchronize();
    EXPECT_EQ(awaitError(comm), pealRemoteError);
    expectWords(pealGetLastError(comm), {"rank 0", "abort"});
  }
  PEAL_EXPECT_OK(pealCommAbort(comm));
}

class Withdrawal : public testing::TestWithParam<Showing> {};

TEST_P(Withdrawal, AbortReturnsWhenNoKernelOfTheProcessReadsTheBuffers) {
  inProcess(showing(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    std::atomic<int> reading{0};
    onThreads(2, [&](int rank) {
      rank == 0 ? showAndAbort(GetParam(), comms[0], reading) : readInPlace(GetParam(), comms[1], reading);
    });
  });
}

TEST_P(Withdrawal, AbortReturnsWhenNoKernelOfOtherProcessesReadsTheBuffers) {
  SharedValue<Meeting> meeting;
  SharedValue<std::atomic<int>> reading;
  expectAllSucceeded(runProcesses(2, kHangs, [&](const Child& child) {
    enter(showing(), {});
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.device = child.index();
    pealComm_t comm = nullptr;
    PEAL_EXPECT_OK(meeting->join(&comm, child.index(), 2, &config));
    child.index() == 0 ? showAndAbort(GetParam(), comm, *reading) : readInPlace(GetParam(), comm, *reading);
    expectNothingAlive();
    return 0;
  }));
}

INSTANTIATE_TEST_SUITE_P(GpuFaults, Withdrawal,
                         testing::Values(Showing::Send, Showing::GraphReads, Showing::GraphShows),
                         [](const testing::TestParamInfo<Showing>& row) {
                           return std::string(row.param == Showing::Send         ? "send"
                                              : row.param == Showing::GraphReads ? "graph_reads"
                                                                                 : "graph_shows");
                         });

}  // namespace

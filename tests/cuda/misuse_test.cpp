// What goes wrong with GPU communicators through the caller's fault: each a result code, and a sentence that
// says what was seen and what to do. The communicator stays usable.
#include "tests/cuda/gpu_ranks.h"

namespace {

using namespace peal::test;

constexpr size_t kCount = 100;

void expectRefused(pealResult_t result, pealResult_t code, const std::vector<std::string>& words) {
  const std::string sentence = pealGetLastError(nullptr);
  EXPECT_EQ(result, code) << sentence;
  for (const std::string& word : words) {
    EXPECT_NE(sentence.find(word), std::string::npos) << "no \"" << word << "\" in: " << sentence;
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "left for the application to meet: " << sentence;
}

// A communicator of one rank on device 0 of two, with what calls need.
struct Alone {
  pealComm_t comm = initAll({0})[0];
  GpuStream stream{0};
  GpuBuffer data{0, kCount * sizeof(float)};

  pealResult_t allReduce(const void* send, void* recv, size_t count = kCount) const {
    return pealAllReduce(send, recv, count, pealFloat32, pealSum, comm, stream.peal());
  }
  ~Alone() {
    PEAL_EXPECT_OK(allReduce(data.data(), data.data()));  // still usable
    stream.synchronize();
    PEAL_EXPECT_OK(pealCommDestroy(comm));
  }
};

TEST(Misuse, BuffersThatAreNotMemoryOfTheDevice) {
  inProcess(smallGpu(), [] {
    const Alone alone;
    std::vector<float> host(kCount);
    expectRefused(alone.allReduce(host.data(), alone.data.data()), pealInvalidArgument,
                  {"sendbuff", "host memory", "device 0", "PEAL_DEVICE_HOST"});
    expectRefused(alone.allReduce(alone.data.data(), host.data()), pealInvalidArgument, {"recvbuff"});

    void* pinned = nullptr;
    CUDA_OK(cudaMallocHost(&pinned, kCount * sizeof(float)));
    expectRefused(alone.allReduce(pinned, alone.data.data()), pealInvalidArgument,
                  {"pinned host memory", "copy it to memory of the device"});
    CUDA_OK(cudaFreeHost(pinned));

    const GpuBuffer elsewhere(1, kCount * sizeof(float));
    expectRefused(alone.allReduce(alone.data.data(), elsewhere.data()), pealInvalidArgument,
                  {"recvbuff", "memory of device 1", "on device 0"});

    void* freed = nullptr;
    PEAL_EXPECT_OK(pealMemAllocDevice(&freed, kCount * sizeof(float), 0));
    PEAL_EXPECT_OK(pealMemFree(freed));
    expectRefused(alone.allReduce(freed, alone.data.data()), pealInvalidArgument, {"sendbuff", "freed"});

    expectRefused(alone.allReduce(nullptr, alone.data.data()), pealInvalidArgument, {"sendbuff is NULL"});
  });
}

TEST(Misuse, BuffersThatAreTooShort) {
  inProcess(smallGpu(), [] {
    const Alone alone;
    const size_t bytes = kCount * sizeof(float) + 16;  // of the allocation
    expectRefused(alone.allReduce(alone.data.data(), alone.data.data(), kCount * sizeof(float)),
                  pealInvalidArgument,
                  {"needs 1600 bytes", fmt::format("ends {} bytes", bytes), "elements, not bytes"});
    expectRefused(
        pealSend(alone.data.data() + 8, kCount + 3, pealFloat32, 0, alone.comm, alone.stream.peal()),
        pealInvalidArgument, {"only inside a group"});
    PEAL_EXPECT_OK(pealGroupStart());
    PEAL_EXPECT_OK(
        pealSend(alone.data.data() + 8, kCount + 3, pealFloat32, 0, alone.comm, alone.stream.peal()));
    expectRefused(pealGroupEnd(), pealInvalidArgument, {"send to rank 0", "needs 412 bytes"});
  });
}

TEST(Misuse, StreamsOfOthers) {
  inProcess(smallGpu(), [] {
    const Alone alone;
    const auto allReduce = [&](pealStream_t stream) {
      return pealAllReduce(alone.data.data(), alone.data.data(), kCount, pealFloat32, pealSum, alone.comm,
                           stream);
    };
    {
      const GpuStream other(1);
      expectRefused(allReduce(other.peal()), pealInvalidArgument,
                    {"the stream belongs to device 1", "on device 0", "cudaSetDevice"});
    }
    pealStream_t host = nullptr;
    PEAL_EXPECT_OK(pealStreamCreate(&host));
    expectRefused(allReduce(host), pealInvalidArgument, {"pealStreamCreate", "cudaStream_t"});
    PEAL_EXPECT_OK(pealStreamDestroy(host));

    const std::vector<pealComm_t> onHost = initAll({PEAL_DEVICE_HOST});
    std::vector<float> values(kCount);
    expectRefused(pealAllReduce(values.data(), values.data(), kCount, pealFloat32, pealSum, onHost[0],
                                alone.stream.peal()),
                  pealInvalidArgument, {"host memory", "no CUDA stream"});
    destroyAll(onHost);
    expectRefused(pealStreamSynchronize(alone.stream.peal()), pealInvalidArgument, {"is it a CUDA stream"});
  });
}

TEST(Misuse, TheDefaultStreamWhileAnotherIsCaptured) {
  inProcess(smallGpu(), [] {
    const Alone alone;
    CUDA_OK(cudaSetDevice(0));
    cudaStream_t blocking = nullptr;  // the default stream would wait for it
    CUDA_OK(cudaStreamCreate(&blocking));
    CUDA_OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal));
    expectRefused(pealAllReduce(alone.data.data(), alone.data.data(), kCount, pealFloat32, pealSum,
                                alone.comm, nullptr),
                  pealInvalidUsage, {"default stream", "captured"});
    cudaGraph_t graph = nullptr;
    static_cast<void>(cudaStreamEndCapture(blocking, &graph));  // broken by the default stream, or not
    static_cast<void>(cudaGetLastError());
    if (graph != nullptr) {
      CUDA_OK(cudaGraphDestroy(graph));
    }
    CUDA_OK(cudaStreamDestroy(blocking));
  });
}

TEST(Misuse, CapturesInTheWrongState) {
  inProcess(smallGpu(), [] {
    const Alone alone;
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaStreamBeginCapture(alone.stream.get(), cudaStreamCaptureModeGlobal));
    // What peal itself allocates does not break a capture.
    void* memory = nullptr;
    PEAL_EXPECT_OK(pealMemAllocDevice(&memory, 64, 0));
    PEAL_EXPECT_OK(pealMemFree(memory));
    PEAL_EXPECT_OK(alone.allReduce(alone.data.data(), alone.data.data()));
    // The application breaks it.
    EXPECT_NE(cudaMalloc(&memory, 64), cudaSuccess);
    static_cast<void>(cudaGetLastError());
    expectRefused(alone.allReduce(alone.data.data(), alone.data.data()), pealInvalidUsage,
                  {"broken", "cudaStreamEndCapture"});
    cudaGraph_t graph = nullptr;
    EXPECT_NE(cudaStreamEndCapture(alone.stream.get(), &graph), cudaSuccess);
    static_cast<void>(cudaGetLastError());
    peal::cudasim::settle();
  });
}

TEST(Misuse, ArraysWithoutElementsMayBeNull) {
  inProcess(smallGpu(), [] {
    const Alone alone;
    PEAL_EXPECT_OK(alone.allReduce(nullptr, nullptr, 0));
    PEAL_EXPECT_OK(pealGroupStart());
    PEAL_EXPECT_OK(pealSend(nullptr, 0, pealFloat32, 0, alone.comm, alone.stream.peal()));
    PEAL_EXPECT_OK(pealRecv(nullptr, 0, pealFloat32, 0, alone.comm, alone.stream.peal()));
    PEAL_EXPECT_OK(pealGroupEnd());
    alone.stream.synchronize();
    expectRefused(alone.allReduce(alone.data.data(), alone.data.data(), ~size_t{0} / 4 + 2),
                  pealInvalidArgument, {"more than the address space"});
  });
}

// The application's own state of CUDA stays as it was, the error that it would look for next included.
TEST(Misuse, TheCurrentDeviceAndTheLastErrorStay) {
  inProcess(smallGpu(), [] {
    Meeting meeting;
    onThreads(2, [&](int rank) {
      const auto expectThird = [](const char* after) {
        int device = -1;
        CUDA_OK(cudaGetDevice(&device));
        EXPECT_EQ(device, 3) << after;
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << after;
      };
      const GpuStream stream(rank);
      const GpuBuffer data(rank, kCount * sizeof(float));
      CUDA_OK(cudaSetDevice(3));
      pealConfig_t config = PEAL_CONFIG_INITIALIZER;
      config.device = rank;
      pealComm_t comm = nullptr;
      PEAL_ASSERT_OK(meeting.join(&comm, rank, 2, &config));
      expectThird("pealCommInitRankConfig");
      PEAL_EXPECT_OK(
          pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comm, stream.peal()));
      expectThird("pealAllReduce");
      PEAL_EXPECT_OK(pealGroupStart());
      PEAL_EXPECT_OK(pealSend(data.data(), 1, pealFloat32, 1 - rank, comm, stream.peal()));
      PEAL_EXPECT_OK(pealRecv(data.data() + 4, 1, pealFloat32, 1 - rank, comm, stream.peal()));
      PEAL_EXPECT_OK(pealGroupEnd());
      expectThird("pealGroupEnd");
      void* handle = nullptr;
      PEAL_EXPECT_OK(pealCommRegister(comm, data.data(), data.bytes(), &handle));
      PEAL_EXPECT_OK(pealCommDeregister(comm, handle));
      expectThird("pealCommDeregister");
      pealComm_t child = nullptr;
      PEAL_EXPECT_OK(pealCommSplit(comm, 0, rank, &child, nullptr));
      PEAL_EXPECT_OK(pealCommDestroy(child));
      expectThird("pealCommSplit and pealCommDestroy");
      PEAL_EXPECT_OK(pealCommFinalize(comm));
      PEAL_EXPECT_OK(pealCommDestroy(comm));
      expectThird("pealCommFinalize and pealCommDestroy");
    });
  });
}

TEST(Misuse, ScalarsAndRegistrationsOutsideTheDevice) {
  inProcess(smallGpu(), [] {
    const Alone alone;
    float factor = 2;
    pealRedOp_t op{};
    PEAL_EXPECT_OK(pealRedOpCreatePreMulSum(&op, &factor, pealFloat32, pealScalarDevice, alone.comm));
    expectRefused(pealAllReduce(alone.data.data(), alone.data.data(), kCount, pealFloat32, op, alone.comm,
                                alone.stream.peal()),
                  pealInvalidArgument, {"scalar", "host memory"});
    PEAL_EXPECT_OK(
        pealRedOpCreatePreMulSum(&op, alone.data.data() + 2, pealFloat32, pealScalarDevice, alone.comm));
    expectRefused(pealAllReduce(alone.data.data(), alone.data.data(), kCount, pealFloat32, op, alone.comm,
                                alone.stream.peal()),
                  pealInvalidArgument, {"scalar", "multiple of its 4 bytes"});
    void* handle = nullptr;
    expectRefused(pealCommRegister(alone.comm, &factor, sizeof factor, &handle), pealInvalidArgument,
                  {"only memory of this rank's device 0"});
    expectRefused(pealCommRegister(alone.comm, alone.data.data(), size_t{1} << 20, &handle),
                  pealInvalidArgument, {"do not lie in one allocation"});
    expectRefused(pealCommDeregister(alone.comm, &factor), pealInvalidArgument, {"no registered buffer"});
    expectRefused(pealMemFree(&factor), pealInvalidArgument, {});
    void* memory = nullptr;
    expectRefused(pealMemAllocDevice(&memory, 64, 8), pealInvalidArgument,
                  {"device 8 does not exist", "8 devices"});
    expectRefused(pealMemAllocDevice(&memory, 64, -1), pealInvalidArgument, {"pealMemAlloc"});
  });
}

TEST(Misuse, GroupsThatDoNotFit) {
  inProcess(smallGpu(), [] {
    const Alone alone;
    PEAL_EXPECT_OK(pealGroupStart());
    for (int i = 0; i < 129; ++i) {
      PEAL_EXPECT_OK(pealSend(alone.data.data(), 1, pealFloat32, 0, alone.comm, alone.stream.peal()));
      PEAL_EXPECT_OK(pealRecv(alone.data.data() + 4, 1, pealFloat32, 0, alone.comm, alone.stream.peal()));
    }
    expectRefused(pealGroupEnd(), pealInvalidUsage, {"258 sends and receives", "at most 256"});
  });
}

TEST(Misuse, DevicesThatAreNotThere) {
  inProcess(smallGpu(), [] {
    pealComm_t comm = nullptr;
    int device = 8;
    expectRefused(pealCommInitAll(&comm, 1, &device), pealInvalidArgument,
                  {"devlist[0] is 8", "sees 8 devices", "CUDA_VISIBLE_DEVICES"});
    device = -2;
    expectRefused(pealCommInitAll(&comm, 1, &device), pealInvalidArgument, {"devlist[0] is -2"});
    pealUniqueId id{};
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.device = 99;
    expectRefused(pealCommInitRankConfig(&comm, 1, id, 0, &config), pealInvalidArgument,
                  {"config.device is 99"});
    EXPECT_EQ(comm, nullptr);
  });
  peal::cudasim::Machine machine;
  int device = 0;
  pealComm_t comm = nullptr;
  machine.driverVersion = 12040;
  inProcess(
      smallGpu(),
      [&] {
        expectRefused(pealCommInitAll(&comm, 1, &device), pealUnhandledCudaError,
                      {"driver supports CUDA 12.4", "this library needs 13.0", "Install a newer driver"});
        const char* json = nullptr;
        PEAL_EXPECT_OK(pealSystemInfo(&json));
        EXPECT_NE(std::string(json).find("driver supports CUDA 12.4"), std::string::npos) << json;
      },
      kHangs, machine);
  machine.driverVersion = 0;
  inProcess(
      smallGpu(),
      [&] {
        expectRefused(pealCommInitAll(&comm, 1, &device), pealUnhandledCudaError, {"No NVIDIA driver"});
      },
      kHangs, machine);
  machine = {};
  machine.devices = 0;
  inProcess(
      smallGpu(),
      [&] {
        expectRefused(pealCommInitAll(&comm, 1, &device), pealUnhandledCudaError, {"No GPU is visible"});
      },
      kHangs, machine);
  machine = {};
  machine.capabilityMajor = 7;
  inProcess(
      smallGpu(),
      [&] {
        expectRefused(pealCommInitAll(&comm, 1, &device), pealInvalidArgument, {"compute capability 7.x"});
      },
      kHangs, machine);
}

TEST(Misuse, MoreBlocksThanFitOnTheDevice) {
  peal::cudasim::Machine machine;
  machine.multiprocessors = 2;
  machine.blocksPerMultiprocessor = 4;
  inProcess(
      with(smallGpu(), {{"PEAL_CHANNELS", "3"}}),
      [] {
        std::vector<pealComm_t> comms(3);
        const std::vector<int> devices{0, 0, 0};
        expectRefused(pealCommInitAll(comms.data(), 3, devices.data()), pealInvalidUsage,
                      {"3 ranks on device 0", "9 resident blocks", "8 of 64 threads fit", "PEAL_CHANNELS"});
        destroyAll(initAll({0, 0, 1}));
      },
      kHangs, machine);
}

TEST(Misuse, RanksOnHostAndGpuTogether) {
  inProcess(smallGpu(), [] {
    std::vector<pealComm_t> comms(2);
    const std::vector<int> devices{0, PEAL_DEVICE_HOST};
    expectRefused(pealCommInitAll(comms.data(), 2, devices.data()), pealInvalidUsage,
                  {"the kind of device", "a GPU on rank", "host memory on rank"});
  });
}

TEST(Misuse, ProtocolsThatThePathDoesNotAllow) {
  peal::cudasim::Machine machine;
  machine.peerAccess = [](int, int) { return false; };
  inProcess(
      with(smallGpu(), {{"PEAL_PROTOCOL", "ll128"}}),
      [] {
        const std::vector<pealComm_t> comms = initAll({0, 1});
        const GpuBuffer data(0, kCount * sizeof(float));
        expectRefused(
            pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comms[0], nullptr),
            pealInvalidUsage, {"PEAL_PROTOCOL=ll128", "legal are: simple, ll."});
        destroyAll(comms);
      },
      kHangs, machine);
}

TEST(Misuse, TheKnobSaysTheDevice) {
  inProcess(with(smallGpu(), {{"PEAL_DEVICE", "3"}}), [] {
    pealUniqueId id{};
    pealComm_t comm = nullptr;
    PEAL_EXPECT_OK(pealGetUniqueId(&id));
    PEAL_EXPECT_OK(pealCommInitRank(&comm, 1, id, 0));
    int device = -5;
    PEAL_EXPECT_OK(pealCommCuDevice(comm, &device));
    EXPECT_EQ(device, 3);
    PEAL_EXPECT_OK(pealCommDestroy(comm));
  });
}

// What a communicator of one rank is on, in this environment and with this device in its options.
int deviceWith(int wish) {
  pealUniqueId id{};
  pealComm_t comm = nullptr;
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  config.device = wish;
  PEAL_EXPECT_OK(pealGetUniqueId(&id));
  PEAL_EXPECT_OK(pealCommInitRankConfig(&comm, 1, id, 0, &config));
  int device = -5;
  PEAL_EXPECT_OK(pealCommCuDevice(comm, &device));
  PEAL_EXPECT_OK(pealCommDestroy(comm));
  return device;
}

TEST(Misuse, TheDeviceMayBeTheCurrentOneOrTheRanksShare) {
  inProcess(with(smallGpu(), {{"PEAL_DEVICE", "current"}}), [] {
    cudaOk(cudaSetDevice(2), "cudaSetDevice");
    EXPECT_EQ(deviceWith(PEAL_CONFIG_UNDEF_INT), 2);
    EXPECT_EQ(deviceWith(PEAL_DEVICE_HOST), PEAL_DEVICE_HOST);
    pealUniqueId id{};
    PEAL_EXPECT_OK(pealGetUniqueId(&id));
    pealComm_t comm = nullptr;
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.device = PEAL_DEVICE_AUTO;
    expectRefused(pealCommInitRankConfig(&comm, 1, id, 0, &config), pealInvalidUsage,
                  {"config.device is auto", "PEAL_LOCAL_RANK"});
  });
  inProcess(with(smallGpu(), {{"PEAL_DEVICE", "auto"},
                              {"PEAL_RANK", "9"},
                              {"PEAL_SIZE", "10"},
                              {"PEAL_LOCAL_RANK", "9"},
                              {"PEAL_LOCAL_SIZE", "10"}}),
            [] {
              int count = 0;
              cudaOk(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
              ASSERT_LT(count, 9);
              EXPECT_EQ(deviceWith(PEAL_CONFIG_UNDEF_INT), 9 % count);
              EXPECT_EQ(deviceWith(PEAL_DEVICE_CURRENT), 0);
            });
}

}  // namespace

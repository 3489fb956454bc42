// Ranks on simulated GPUs, through the public API: each test body runs in a process of its own, with its own
// environment and machine, and must leave nothing alive in the simulated runtime.
#pragma once
#include <cuda_runtime.h>
#include <cudasim/devices.h>
#include <cudasim/runtime.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "lib/reduce/reduce.h"
#include "peal/peal.h"
#include "tests/processes/ranks.h"
#include "tests/support/limits.h"
#include "transports/cuda_ipc/lingering.h"

namespace peal::test {

using Environment = std::map<std::string, std::string>;

// Small blocks and slots, so that the simulator is quick and every ring of slots goes round.
inline Environment smallGpu() {
  return {{"PEAL_THREADS", "64"},      {"PEAL_CHANNELS", "2"}, {"PEAL_SLOTS", "2"},
          {"PEAL_SLOT_BYTES", "1024"}, {"PEAL_LOG", "none"},   {"PEAL_TIMEOUT_MS", std::to_string(kFarMs)}};
}
inline Environment with(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) {
    base[name] = value;
  }
  return base;
}

inline void enter(const Environment& environment, const cudasim::Machine& machine) {
  for (const auto& [name, value] : environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  cudasim::restartAfterFork();
  cudasim::restart(machine);
}

// Nothing of CUDA is left when all communicators, buffers, streams and graphs of a test have ended.
inline void expectNothingAlive() {
  EXPECT_TRUE(cuda::lingeringEnded(Deadline::afterMs(kFarMs)));
  for (const std::string& line : cudasim::liveObjects()) {
    ADD_FAILURE() << "left alive: " << line;
  }
}

// Runs body in a child process with this environment.
inline void inProcess(const Environment& environment, const std::function<void()>& body,
                      std::chrono::milliseconds limit = std::chrono::seconds(100),
                      const cudasim::Machine& machine = {}) {
  expectAllSucceeded(runProcesses(1, limit, [&](const Child&) {
    enter(environment, machine);
    body();
    expectNothingAlive();
    return 0;
  }));
}

// Runs body(rank) in a thread for each rank, and waits.
inline void onThreads(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { body(rank); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

#define CUDA_OK(call) ASSERT_EQ((call), cudaSuccess) << #call
// In functions that return something.
inline void cudaOk(cudaError_t code, const char* what) { EXPECT_EQ(code, cudaSuccess) << what; }

inline pealStream_t asPeal(cudaStream_t stream) { return reinterpret_cast<pealStream_t>(stream); }

// A stream of a device that does not wait for the default stream.
class GpuStream {
 public:
  explicit GpuStream(int device) {
    cudaOk(cudaSetDevice(cudasim::deviceOf(device)), "cudaSetDevice");
    cudaOk(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  ~GpuStream() { cudaOk(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }
  cudaStream_t get() const { return stream_; }
  pealStream_t peal() const { return asPeal(stream_); }
  void synchronize() const { cudaOk(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Bytes on a device. At least one, so that a pointer is there to give.
class GpuBuffer {
 public:
  GpuBuffer(int device, size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(pealMemAllocDevice(&data_, bytes + 16, cudasim::deviceOf(device)), pealSuccess)
        << pealGetLastError(nullptr);
  }
  GpuBuffer(int device, const std::vector<std::byte>& values) : GpuBuffer(device, values.size()) {
    write(values);
  }
  GpuBuffer(GpuBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  GpuBuffer& operator=(GpuBuffer&&) = delete;
  ~GpuBuffer() { EXPECT_EQ(pealMemFree(data_), pealSuccess) << pealGetLastError(nullptr); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }
  void write(const std::vector<std::byte>& values) const {
    cudaOk(cudaMemcpy(data_, values.data(), values.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<std::byte> read() const {
    std::vector<std::byte> values(bytes_);
    cudaOk(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// The same values for the same seed, moderate ones, so that sums of all types stay finite.
inline std::vector<std::byte> valuesOf(pealDataType_t type, size_t count, uint64_t seed) {
  std::vector<std::byte> values(count * elementBytes(type));
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  const auto next = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  const bool small = type == pealFloat16 || type == pealBfloat16 || type == pealFloat32 ||
                     type == pealFloat8e4m3 || type == pealFloat8e5m2;
  for (size_t i = 0; i < count; ++i) {
    std::byte* to = values.data() + i * elementBytes(type);
    const double value = static_cast<double>(next() % 4001) / 1000.0 - 2.0;
    if (small) {
      fromFloat(type, static_cast<float>(value), to);
    } else if (type == pealFloat64) {
      std::memcpy(to, &value, sizeof value);
    } else {
      const uint64_t bits = next();
      std::memcpy(to, &bits, elementBytes(type));
    }
  }
  return values;
}

// A collective call of a test.
struct Call {
  int kind = pealStatAllReduce;
  pealDataType_t type = pealFloat32;
  pealRedOp_t op = pealSum;
  size_t count = 0;  // per rank where the collective is scattered
  int root = 0;
  bool inPlace = false;
  bool uneven = false;  // the v-form: rank r has count + 3 r elements, and rank 0 none

  std::vector<size_t> counts(int ranks) const {
    std::vector<size_t> all(static_cast<size_t>(ranks), count);
    for (size_t rank = 0; uneven && rank < all.size(); ++rank) {
      all[rank] = rank == 0 ? 0 : count + 3 * rank;
    }
    return all;
  }
  size_t start(int rank, int ranks) const {
    size_t sum = 0;
    const std::vector<size_t> all = counts(ranks);
    for (int i = 0; i < rank; ++i) {
      sum += all[static_cast<size_t>(i)];
    }
    return sum;
  }
  size_t sendCount(int rank, int ranks) const {
    return kind == pealStatReduceScatter ? start(ranks, ranks)
           : kind == pealStatAllGather   ? counts(ranks)[static_cast<size_t>(rank)]
                                         : count;
  }
  size_t recvCount(int rank, int ranks) const {
    return kind == pealStatAllGather       ? start(ranks, ranks)
           : kind == pealStatReduceScatter ? counts(ranks)[static_cast<size_t>(rank)]
           : kind == pealStatReduce        ? (rank == root ? count : 0)
                                           : count;
  }
  std::string text() const {
    return fmt::format("kind {} type {} op {} count {} root {}{}{}", kind, typeName(type),
                       static_cast<int>(op), count, root, inPlace ? " in place" : "",
                       uneven ? " uneven" : "");
  }
};

// A sample that meets every collective, type and operation at least once.
inline std::vector<Call> sampleCalls() {
  return {
      {.kind = pealStatAllReduce, .type = pealFloat32, .op = pealSum, .count = 1000},
      {.kind = pealStatAllReduce, .type = pealBfloat16, .op = pealAvg, .count = 517, .inPlace = true},
      {.kind = pealStatAllReduce, .type = pealInt8, .op = pealProd, .count = 3001},
      {.kind = pealStatAllReduce, .type = pealFloat64, .op = pealMax, .count = 1},
      {.kind = pealStatAllReduce, .type = pealUint64, .op = pealMin, .count = 0},
      {.kind = pealStatReduceScatter, .type = pealFloat16, .op = pealSum, .count = 333},
      {.kind = pealStatReduceScatter, .type = pealInt32, .op = pealAvg, .count = 65, .inPlace = true},
      {.kind = pealStatReduceScatter, .type = pealFloat8e4m3, .op = pealSum, .count = 100, .uneven = true},
      {.kind = pealStatAllGather, .type = pealFloat8e5m2, .count = 777},
      {.kind = pealStatAllGather, .type = pealUint8, .count = 50, .inPlace = true, .uneven = true},
      {.kind = pealStatBroadcast, .type = pealInt64, .count = 401, .root = 1},
      {.kind = pealStatReduce, .type = pealUint32, .op = pealSum, .count = 600, .root = 1},
      {.kind = pealStatReduce, .type = pealFloat8e5m2, .op = pealMin, .count = 129},
      {.kind = pealStatBarrier},
  };
}

inline pealResult_t issue(const Call& call, const void* send, void* recv, pealComm_t comm, int ranks,
                          pealStream_t stream) {
  const std::vector<size_t> counts = call.counts(ranks);
  switch (call.kind) {
    case pealStatAllReduce:
      return pealAllReduce(send, recv, call.count, call.type, call.op, comm, stream);
    case pealStatReduceScatter:
      return call.uneven ? pealReduceScatterV(send, recv, counts.data(), call.type, call.op, comm, stream)
                         : pealReduceScatter(send, recv, call.count, call.type, call.op, comm, stream);
    case pealStatAllGather:
      return call.uneven ? pealAllGatherV(send, recv, counts.data(), call.type, comm, stream)
                         : pealAllGather(send, recv, call.count, call.type, comm, stream);
    case pealStatBroadcast:
      return pealBroadcast(send, recv, call.count, call.type, call.root, comm, stream);
    case pealStatReduce:
      return pealReduce(send, recv, call.count, call.type, call.op, call.root, comm, stream);
    default:
      return pealBarrier(comm, stream);
  }
}

// What a rank of the test has in its buffers before and after a call. In place both are one buffer, as large
// as the larger of the two.
struct Buffers {
  size_t sendBytes, recvBytes;
  size_t sendAt = 0, recvAt = 0;  // in place: offsets in the buffer
  std::vector<std::byte> input;

  Buffers(const Call& call, int rank, int ranks, uint64_t seed) {
    const size_t element = elementBytes(call.type);
    sendBytes = call.sendCount(rank, ranks) * element;
    recvBytes = call.recvCount(rank, ranks) * element;
    input = valuesOf(call.type, call.sendCount(rank, ranks), seed * 1000 + static_cast<uint64_t>(rank));
    if (call.kind == pealStatReduceScatter) {
      recvAt = call.start(rank, ranks) * element;
    }
    if (call.kind == pealStatAllGather) {
      sendAt = call.start(rank, ranks) * element;
    }
  }
  size_t jointBytes() const { return std::max(sendAt + sendBytes, recvAt + recvBytes); }
};

// The call on host memory: what the GPU's result must equal, bit for bit.
inline std::vector<std::byte> onHost(const Call& call, pealComm_t comm, int rank, int ranks, uint64_t seed) {
  const Buffers buffers(call, rank, ranks, seed);
  std::vector<std::byte> send(call.inPlace ? buffers.jointBytes() : buffers.sendBytes);
  std::copy(buffers.input.begin(), buffers.input.end(),
            send.begin() + static_cast<ptrdiff_t>(call.inPlace ? buffers.sendAt : 0));
  std::vector<std::byte> recv(call.inPlace ? 0 : buffers.recvBytes);
  std::byte* const to = call.inPlace ? send.data() + buffers.recvAt : recv.data();
  const std::byte* const from = send.data() + (call.inPlace ? buffers.sendAt : 0);
  PEAL_EXPECT_OK(issue(call, from, to, comm, ranks, nullptr));
  return {to, to + buffers.recvBytes};
}

inline std::vector<std::byte> onGpu(const Call& call, pealComm_t comm, int device, int rank, int ranks,
                                    uint64_t seed, const GpuStream& stream) {
  const Buffers buffers(call, rank, ranks, seed);
  const GpuBuffer send(device, call.inPlace ? buffers.jointBytes() : buffers.sendBytes);
  const GpuBuffer recv(device, call.inPlace ? 0 : buffers.recvBytes);
  std::byte* const from = send.data() + (call.inPlace ? buffers.sendAt : 0);
  std::byte* const to = call.inPlace ? send.data() + buffers.recvAt : recv.data();
  cudaOk(cudaMemcpy(from, buffers.input.data(), buffers.input.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  PEAL_EXPECT_OK(issue(call, from, to, comm, ranks, stream.peal()));
  stream.synchronize();
  std::vector<std::byte> result(buffers.recvBytes);
  cudaOk(cudaMemcpy(result.data(), to, result.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return result;
}

// Communicators of this process: comms[r] on devices[r].
inline std::vector<pealComm_t> initAll(std::vector<int> devices) {
  std::transform(devices.begin(), devices.end(), devices.begin(), cudasim::deviceOf);
  std::vector<pealComm_t> comms(devices.size());
  PEAL_EXPECT_OK(pealCommInitAll(comms.data(), static_cast<int>(devices.size()), devices.data()));
  return comms;
}
inline void destroyAll(const std::vector<pealComm_t>& comms) {
  for (const pealComm_t comm : comms) {
    PEAL_EXPECT_OK(pealCommDestroy(comm));
  }
}

// What calls did to a stream, as a graph to launch. It is gone for peal once CUDA has said so: destroy()
// waits for that.
struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;

  Graph(const GpuStream& stream, const std::function<void()>& calls) {
    cudaOk(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    calls();
    cudaOk(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
    cudaOk(cudaGraphInstantiate(&instance, graph, 0), "cudaGraphInstantiate");
  }
  void launch(const GpuStream& stream) const {
    cudaOk(cudaGraphLaunch(instance, stream.get()), "cudaGraphLaunch");
  }
  void destroyAtOnce() const {
    cudaOk(cudaGraphExecDestroy(instance), "cudaGraphExecDestroy");
    cudaOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  void destroy() const {
    destroyAtOnce();
    cudasim::settle();
  }
};

// Until the communicator knows of an error.
inline pealResult_t awaitError(pealComm_t comm) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kFarMs);
  pealResult_t error = pealSuccess;
  while (error == pealSuccess && std::chrono::steady_clock::now() < end) {
    EXPECT_EQ(pealCommGetAsyncError(comm, &error), pealSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return error;
}

inline void expectWords(const std::string& sentence, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(sentence.find(word), std::string::npos) << "no \"" << word << "\" in: " << sentence;
  }
}

}  // namespace peal::test

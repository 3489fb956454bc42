// The simulated runtime: order within and between streams, events, kernels, lost devices, held launches.
#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "lib/executor/cuda/device.h"
#include "tests/cudasim/core/options.h"
#include "tests/cudasim/runtime_fixture.h"

namespace peal::cudasim {
namespace {

using RuntimeStreams = RuntimeTest;
using RuntimeEvents = RuntimeTest;
using RuntimeKernels = RuntimeTest;
using RuntimeHold = RuntimeTest;

// ---- kernels of these tests ----

struct Fill {
  uint64_t* data;
  uint64_t value;
  char pad[2000];  // arguments are copied whole
};
PEAL_KERNEL void fillKernel(const Fill fill, uint64_t add) {
  const uint32_t thread = cuda::blockIndex() * cuda::blockThreads() + cuda::threadIndex();
  cuda::storeGlobal(fill.data + thread, fill.value + add + thread);
}

// Thread 0 of each block adds one, then waits until the sum is there.
PEAL_KERNEL void meetKernel(uint64_t* arrived, uint64_t expected) {
  if (cuda::threadIndex() == 0) {
    cuda::fetchAdd(arrived, 1);
    while (cuda::loadAcquire(arrived) < expected) {
    }
  }
}

PEAL_KERNEL void copyWordKernel(uint64_t* to, const uint64_t* from) {
  if (cuda::threadIndex() == 0) {
    cuda::storeGlobal(to, cuda::loadGlobal(from));
  }
}

cudaError_t launchFill(uint64_t* data, uint64_t value, uint64_t add, cudaStream_t stream, dim3 grid = 2,
                       dim3 block = 32) {
  Fill fill{};
  fill.data = data;
  fill.value = value;
  void* args[] = {&fill, &add};
  const cudaError_t error = cudaLaunchKernel(fillKernel, grid, block, args, 0, stream);
  fill.value = add = 0;  // the launch has its own copy
  return error;
}

cudaError_t launchMeet(uint64_t* arrived, uint64_t expected, cudaStream_t stream, dim3 grid = 1) {
  void* args[] = {&arrived, &expected};
  return cudaLaunchKernel(meetKernel, grid, 32, args, 0, stream);
}

cudaError_t launchCopyWord(uint64_t* to, const uint64_t* from, cudaStream_t stream) {
  void* args[] = {&to, &from};
  return cudaLaunchKernel(copyWordKernel, 1, 32, args, 0, stream);
}

// ---- streams ----

TEST_F(RuntimeStreams, RunInOrderAndApart) {
  const cudaStream_t held = makeStream();
  const cudaStream_t free = makeStream();
  Gate gate;
  gate.close(held);
  std::atomic<int> first = 0;
  std::atomic<int> second = 0;
  markOn(held, &first);
  markOn(free, &second);
  EXPECT_CUDA(cudaStreamSynchronize(free));
  EXPECT_EQ(second, 1);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(cudaStreamQuery(held), cudaErrorNotReady);
  EXPECT_NE(describeStreams().find("2 queued"), std::string::npos) << describeStreams();
  gate.open();
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(first, 1);
  EXPECT_CUDA(cudaStreamQuery(held));
  EXPECT_CUDA(cudaStreamDestroy(held));
  EXPECT_CUDA(cudaStreamDestroy(free));
  EXPECT_EQ(cudaStreamSynchronize(free), cudaErrorInvalidResourceHandle);
}

TEST_F(RuntimeStreams, SayWhatTheyAre) {
  EXPECT_CUDA(cudaSetDevice(4));
  cudaStream_t stream = nullptr;
  EXPECT_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -2));
  EXPECT_CUDA(cudaSetDevice(0));
  int device = -1;
  int priority = 0;
  unsigned flags = 0;
  unsigned long long id = 0;
  EXPECT_CUDA(cudaStreamGetDevice(stream, &device));
  EXPECT_CUDA(cudaStreamGetPriority(stream, &priority));
  EXPECT_CUDA(cudaStreamGetFlags(stream, &flags));
  EXPECT_CUDA(cudaStreamGetId(stream, &id));
  EXPECT_EQ(device, 4);
  EXPECT_EQ(priority, -2);
  EXPECT_EQ(flags, unsigned{cudaStreamNonBlocking});
  unsigned long long legacyId = 0;
  EXPECT_CUDA(cudaStreamGetId(nullptr, &legacyId));
  EXPECT_NE(id, legacyId);
  EXPECT_CUDA(cudaStreamGetDevice(nullptr, &device));
  EXPECT_EQ(device, 0);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST_F(RuntimeStreams, TheLegacyStreamWaitsForBlockingOnes) {
  const cudaStream_t blocking = makeStream(cudaStreamDefault);
  const cudaStream_t other = makeStream(cudaStreamNonBlocking);
  Gate gate;
  Gate otherGate;
  gate.close(blocking);
  otherGate.close(other);
  std::atomic<int> legacy = 0;
  std::atomic<int> after = 0;
  markOn(nullptr, &legacy);
  markOn(blocking, &after);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  EXPECT_EQ(legacy, 0);
  gate.open();
  EXPECT_CUDA(cudaStreamSynchronize(nullptr));  // of `other` it knows nothing
  EXPECT_EQ(legacy, 1);
  EXPECT_EQ(after, 1);
  otherGate.open();
  EXPECT_CUDA(cudaStreamDestroy(blocking));
  EXPECT_CUDA(cudaStreamDestroy(other));
}

TEST_F(RuntimeStreams, FinishWhatTheyHoldWhenDestroyed) {
  const cudaStream_t stream = makeStream();
  Gate gate;
  gate.close(stream);
  std::atomic<int> mark = 0;
  markOn(stream, &mark);
  EXPECT_CUDA(cudaStreamDestroy(stream));
  EXPECT_EQ(mark, 0);
  gate.open();
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(mark, 1);
}

TEST_F(RuntimeStreams, RefuseCallsFromHostFunctions) {
  const cudaStream_t stream = makeStream();
  static std::atomic<int> error;
  error = -1;
  EXPECT_CUDA(cudaLaunchHostFunc(
      stream,
      [](void*) {
        int device = 0;
        error = cudaGetDevice(&device);
      },
      nullptr));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(error, cudaErrorNotPermitted);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST_F(RuntimeStreams, FreeingWaitsForTheDevice) {
  const cudaStream_t stream = makeStream();
  auto* data = allocate<char>(16);
  Gate gate;
  gate.close(stream);
  EXPECT_CUDA(cudaMemsetAsync(data, 1, 16, stream));
  std::atomic<bool> freed = false;
  std::thread freeing([&] {
    EXPECT_CUDA(cudaFree(data));
    freed = true;
  });
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_FALSE(freed);
  gate.open();
  freeing.join();
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

// ---- events ----

TEST_F(RuntimeEvents, OrderStreams) {
  const cudaStream_t producer = makeStream();
  EXPECT_CUDA(cudaSetDevice(1));
  const cudaStream_t consumer = makeStream();  // of another device
  EXPECT_CUDA(cudaSetDevice(0));
  const cudaEvent_t event = makeEvent();
  Gate gate;
  gate.close(producer);
  EXPECT_CUDA(cudaEventQuery(event));  // never recorded: nothing to wait for
  EXPECT_CUDA(cudaEventRecord(event, producer));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_CUDA(cudaStreamWaitEvent(consumer, event, 0));
  std::atomic<int> mark = 0;
  markOn(consumer, &mark);
  EXPECT_EQ(cudaStreamQuery(consumer), cudaErrorNotReady);
  EXPECT_EQ(cudaEventRecord(event, consumer), cudaErrorInvalidResourceHandle);  // another device's
  EXPECT_EQ(mark, 0);
  EXPECT_CUDA(cudaEventDestroy(event));  // who waits for it goes on waiting
  gate.open();
  EXPECT_CUDA(cudaStreamSynchronize(consumer));
  EXPECT_EQ(mark, 1);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaStreamDestroy(producer));
  EXPECT_CUDA(cudaStreamDestroy(consumer));
}

TEST_F(RuntimeEvents, AWaitIsForTheRecordBeforeIt) {
  const cudaStream_t first = makeStream();
  const cudaStream_t second = makeStream();
  const cudaStream_t waiting = makeStream();
  const cudaEvent_t event = makeEvent();
  EXPECT_CUDA(cudaEventRecord(event, first));
  EXPECT_CUDA(cudaStreamWaitEvent(waiting, event, 0));
  Gate gate;
  gate.close(second);
  EXPECT_CUDA(cudaEventRecord(event, second));  // does not touch the wait
  EXPECT_CUDA(cudaStreamSynchronize(waiting));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  gate.open();
  EXPECT_CUDA(cudaEventSynchronize(event));
  EXPECT_CUDA(cudaEventDestroy(event));
  for (const cudaStream_t stream : {first, second, waiting}) {
    EXPECT_CUDA(cudaStreamDestroy(stream));
  }
}

TEST_F(RuntimeEvents, TakeTheTime) {
  const cudaStream_t stream = makeStream();
  const cudaEvent_t begin = makeEvent(cudaEventDefault);
  const cudaEvent_t end = makeEvent(cudaEventDefault);
  const cudaEvent_t untimed = makeEvent();
  float ms = -1;
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaErrorInvalidResourceHandle);  // never recorded
  EXPECT_CUDA(cudaEventRecord(begin, stream));
  Gate gate;
  gate.close(stream);
  EXPECT_CUDA(cudaEventRecord(end, stream));
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaErrorNotReady);
  gate.open();
  EXPECT_CUDA(cudaEventSynchronize(end));
  EXPECT_CUDA(cudaEventElapsedTime(&ms, begin, end));
  EXPECT_GE(ms, 0);
  EXPECT_CUDA(cudaEventRecord(untimed, stream));
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, untimed), cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {begin, end, untimed}) {
    EXPECT_CUDA(cudaEventDestroy(event));
  }
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

// ---- kernels ----

TEST_F(RuntimeKernels, RunWithTheirOwnCopyOfTheArguments) {
  auto* data = allocate<uint64_t>(64);
  const cudaStream_t stream = makeStream();
  Gate gate;
  gate.close(stream);
  EXPECT_CUDA(launchFill(data, 100, 5, stream));
  gate.open();
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(read(data), 105u);
  EXPECT_EQ(read(data + 63), 168u);
  EXPECT_CUDA(cudaStreamDestroy(stream));
  EXPECT_CUDA(cudaFree(data));
}

TEST_F(RuntimeKernels, AreRefusedWhatNoDeviceTakes) {
  auto* data = allocate<uint64_t>(64);
  EXPECT_EQ(launchFill(data, 0, 0, nullptr, dim3(0)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launchFill(data, 0, 0, nullptr, dim3(1), dim3(1025)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaLaunchKernel(fillKernel, 1, 32, nullptr), cudaErrorInvalidValue);
  void* args[] = {&data, &data};
  EXPECT_EQ(cudaLaunchKernel(copyWordKernel, 1, 32, args, 100 << 10), cudaErrorInvalidValue);
  EXPECT_CUDA(cudaFuncSetAttribute(copyWordKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
  EXPECT_CUDA(cudaLaunchKernel(copyWordKernel, 1, 32, args, 100 << 10));
  EXPECT_EQ(cudaFuncSetAttribute(copyWordKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 300 << 10),
            cudaErrorInvalidValue);
  int unknown = 0;
  EXPECT_EQ(cudaLaunchKernel(static_cast<const void*>(&unknown), 1, 32, args, 0, nullptr),
            cudaErrorInvalidDeviceFunction);
  // A kernel goes into a stream of the current device.
  const cudaStream_t stream = makeStream();
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_EQ(launchFill(data, 0, 0, stream), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaSetDevice(0));
  EXPECT_CUDA(cudaStreamDestroy(stream));
  EXPECT_CUDA(cudaFree(data));
}

TEST_F(RuntimeKernels, OccupancyFollowsTheMachine) {
  Machine machine;
  machine.blocksPerMultiprocessor = 8;
  restart(machine);
  int blocks = 0;
  EXPECT_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fillKernel, 64, 0));
  EXPECT_EQ(blocks, 8);
  EXPECT_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fillKernel, 512, 0));
  EXPECT_EQ(blocks, 4);
  EXPECT_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fillKernel, 2000, 0));
  EXPECT_EQ(blocks, 0);
  cudaFuncAttributes attributes{};
  EXPECT_CUDA(cudaFuncGetAttributes(&attributes, fillKernel));
  EXPECT_EQ(attributes.maxThreadsPerBlock, 1024);
  EXPECT_EQ(attributes.binaryVersion, 90);
}

TEST_F(RuntimeKernels, OfSeveralStreamsRunAtOnce) {
  auto* arrived = allocate<uint64_t>(1);
  write<uint64_t>(arrived, 0);
  std::array<cudaStream_t, 3> streams{};
  for (cudaStream_t& stream : streams) {
    stream = makeStream();
    EXPECT_CUDA(launchMeet(arrived, 6, stream, 2));
  }
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(read(arrived), 6u);
  for (const cudaStream_t stream : streams) {
    EXPECT_CUDA(cudaStreamDestroy(stream));
  }
  EXPECT_CUDA(cudaFree(arrived));
}

TEST_F(RuntimeKernels, WaitForRoomOnTheDevice) {
  Machine machine;
  machine.multiprocessors = 2;
  machine.blocksPerMultiprocessor = 2;
  restart(machine);
  auto* arrived = allocate<uint64_t>(2);
  write<uint64_t>(arrived, 0);
  write<uint64_t>(arrived + 1, 0);
  const cudaStream_t full = makeStream();
  const cudaStream_t late = makeStream();
  EXPECT_CUDA(launchMeet(arrived, 5, full, 4));  // takes the whole device until somebody adds the fifth
  uint64_t seen = 0;
  while (seen < 4) {
    EXPECT_CUDA(cudaMemcpyAsync(&seen, arrived, sizeof seen, cudaMemcpyDeviceToHost, late));
  }
  EXPECT_CUDA(launchMeet(arrived + 1, 1, late));
  // Long enough for a kernel that had room to have run.
  for (int i = 0; i < 100; i++) {
    EXPECT_EQ(cudaStreamQuery(late), cudaErrorNotReady);
    std::this_thread::yield();
  }
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_CUDA(cudaDeviceEnablePeerAccess(0, 0));
  const cudaStream_t elsewhere = makeStream();
  EXPECT_CUDA(launchMeet(arrived, 5, elsewhere));  // of another device: it fits there
  EXPECT_CUDA(cudaStreamSynchronize(full));
  EXPECT_CUDA(cudaStreamSynchronize(late));
  EXPECT_EQ(read(arrived + 1), 1u);
  for (const cudaStream_t stream : {full, late, elsewhere}) {
    EXPECT_CUDA(cudaStreamDestroy(stream));
  }
  EXPECT_CUDA(cudaFree(arrived));
}

TEST_F(RuntimeKernels, PeersNeedAccess) {
  setTraps(Traps::Error);
  auto* data = allocate<uint64_t>(2);
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_CUDA(cudaDeviceEnablePeerAccess(0, 0));
  EXPECT_CUDA(launchCopyWord(data, data + 1, nullptr));
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_CUDA(cudaSetDevice(2));
  EXPECT_CUDA(launchCopyWord(data, data + 1, nullptr));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_NE(trapReports().at(0).find("no peer access"), std::string::npos);
  EXPECT_CUDA(cudaSetDevice(0));
  EXPECT_CUDA(cudaFree(data));
}

TEST_F(RuntimeKernels, ATrapLosesTheDevice) {
  setTraps(Traps::Error);
  auto* data = allocate<uint64_t>(1);
  const cudaStream_t stream = makeStream();
  const cudaEvent_t event = makeEvent();
  EXPECT_CUDA(launchCopyWord(data, data + 1, stream));  // past the end
  std::atomic<int> mark = 0;
  markOn(stream, &mark);
  EXPECT_CUDA(cudaEventRecord(event, stream));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(mark, 0);  // what follows does not run
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaFree(data), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(trapReports().size(), 1u);
  EXPECT_CUDA(cudaSetDevice(1));  // other devices go on
  EXPECT_CUDA(cudaMalloc(&more, 16));
  EXPECT_CUDA(cudaFree(more));
  restart(Machine{});  // frees what the lost device would not
}

using RuntimeKernelsDeathTest = RuntimeTest;

TEST_F(RuntimeKernelsDeathTest, ATrapEndsTheProcess) {
  EXPECT_EXIT(
      {
        auto* data = allocate<uint64_t>(1);
        (void)launchCopyWord(data, data + 1, nullptr);
        cudaDeviceSynchronize();
      },
      ::testing::ExitedWithCode(97), "outside every allocation");
}

// ---- held launches ----

TEST_F(RuntimeHold, RunsStreamsTogether) {
  auto* arrived = allocate<uint64_t>(1);
  write<uint64_t>(arrived, 0);
  const cudaStream_t a = makeStream();
  const cudaStream_t b = makeStream();
  std::atomic<int> before = 0;
  std::atomic<int> after = 0;
  {
    Hold hold;
    markOn(a, &before);
    EXPECT_CUDA(launchMeet(arrived, 2, a));
    markOn(a, &after);
    EXPECT_CUDA(launchMeet(arrived, 2, b));
    EXPECT_EQ(before, 0);
    hold.run();
    EXPECT_EQ(after, 1);
    EXPECT_CUDA(launchMeet(arrived, 4, a));
    EXPECT_CUDA(launchMeet(arrived, 4, b));
    EXPECT_CUDA(cudaStreamSynchronize(b));  // runs all of it
    EXPECT_EQ(read(arrived), 4u);
    EXPECT_CUDA(launchMeet(arrived, 5, b));
  }
  EXPECT_CUDA(cudaStreamQuery(b));
  EXPECT_EQ(read(arrived), 5u);
  EXPECT_CUDA(cudaStreamDestroy(a));
  EXPECT_CUDA(cudaStreamDestroy(b));
  EXPECT_CUDA(cudaFree(arrived));
}

// Kernel 2 of stream a meets kernel 1 of stream b, which runs from the start.
TEST_F(RuntimeHold, KernelsJoinThoseThatRun) {
  auto* data = allocate<uint64_t>(64);
  auto* arrived = allocate<uint64_t>(1);
  write<uint64_t>(arrived, 0);
  const cudaStream_t a = makeStream();
  const cudaStream_t b = makeStream();
  {
    const Hold hold;
    EXPECT_CUDA(launchFill(data, 7, 0, a));
    EXPECT_CUDA(cudaMemcpyAsync(data + 1, data, 8, cudaMemcpyDeviceToDevice, a));
    EXPECT_CUDA(launchMeet(arrived, 2, a));
    EXPECT_CUDA(launchMeet(arrived, 2, b));
  }
  EXPECT_EQ(read(arrived), 2u);
  EXPECT_EQ(read(data + 1), 7u);
  EXPECT_CUDA(cudaStreamDestroy(a));
  EXPECT_CUDA(cudaStreamDestroy(b));
  EXPECT_CUDA(cudaFree(arrived));
  EXPECT_CUDA(cudaFree(data));
}

TEST_F(RuntimeHold, KeepsTheOrderThatEventsGive) {
  auto* words = allocate<uint64_t>(3);
  write<uint64_t>(words, 42);
  const cudaStream_t a = makeStream();
  const cudaStream_t b = makeStream();
  const cudaEvent_t event = makeEvent();
  {
    const Hold hold;
    // b, issued first, waits for what a does later in time.
    EXPECT_CUDA(launchCopyWord(words + 1, words, a));
    EXPECT_CUDA(cudaEventRecord(event, a));
    EXPECT_CUDA(cudaStreamWaitEvent(b, event, 0));
    EXPECT_CUDA(launchCopyWord(words + 2, words + 1, b));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  }
  EXPECT_CUDA(cudaEventQuery(event));
  EXPECT_EQ(read(words + 2), 42u);
  EXPECT_CUDA(cudaEventDestroy(event));
  EXPECT_CUDA(cudaStreamDestroy(a));
  EXPECT_CUDA(cudaStreamDestroy(b));
  EXPECT_CUDA(cudaFree(words));
}

using RuntimeHoldDeathTest = RuntimeTest;

TEST_F(RuntimeHoldDeathTest, ReportsADeadlock) {
  EXPECT_EXIT(
      {
        auto* arrived = allocate<uint64_t>(1);
        write<uint64_t>(arrived, 0);
        const Hold hold;
        (void)launchMeet(arrived, 2, nullptr);
        cudaDeviceSynchronize();
      },
      ::testing::ExitedWithCode(97), "deadlock");
}

}  // namespace
}  // namespace peal::cudasim

// The simulated runtime: memory and events of other processes.
#include <signal.h>

#include "lib/executor/cuda/device.h"
#include "tests/cudasim/runtime_fixture.h"

namespace peal::cudasim {
namespace {

using RuntimeIpc = RuntimeTest;

PEAL_KERNEL void storeFlagKernel(uint64_t* flag, uint64_t value) {
  if (cuda::threadIndex() == 0) {
    cuda::storeRelease(flag, value);
  }
}
PEAL_KERNEL void awaitFlagKernel(uint64_t* flag, uint64_t value) {
  if (cuda::threadIndex() == 0) {
    while (cuda::loadAcquire(flag) != value) {
    }
  }
}

cudaError_t launch(void (*kernel)(uint64_t*, uint64_t), uint64_t* flag, uint64_t value,
                   cudaStream_t stream = nullptr) {
  void* args[] = {&flag, &value};
  return cudaLaunchKernel(kernel, 1, 32, args, 0, stream);
}

uint64_t* open(const cudaIpcMemHandle_t& handle, cudaError_t expected = cudaSuccess) {
  void* data = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess), expected);
  return static_cast<uint64_t*>(data);
}

cudaIpcMemHandle_t handleOf(void* data) {
  cudaIpcMemHandle_t handle{};
  EXPECT_CUDA(cudaIpcGetMemHandle(&handle, data));
  return handle;
}

// Kernels of two processes meet in memory that one of them has.
TEST_F(RuntimeIpc, KernelsOfTwoProcessesMeet) {
  Child child([](Child& self) {
    EXPECT_CUDA(cudaSetDevice(1));
    uint64_t* words = open(self.receive<cudaIpcMemHandle_t>());
    cudaPointerAttributes attributes{};
    EXPECT_CUDA(cudaPointerGetAttributes(&attributes, words));
    EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
    EXPECT_CUDA(launch(storeFlagKernel, words, 1));
    EXPECT_CUDA(launch(awaitFlagKernel, words + 1, 2));
    EXPECT_CUDA(cudaDeviceSynchronize());
    EXPECT_CUDA(cudaIpcCloseMemHandle(words));
    EXPECT_EQ(cudaIpcCloseMemHandle(words), cudaErrorInvalidValue);
    EXPECT_EQ(liveObjects(), std::vector<std::string>{});
    self.send(1);
  });
  auto* words = allocate<uint64_t>(4);
  EXPECT_CUDA(cudaMemset(words, 0, 32));
  EXPECT_CUDA(cudaDeviceSynchronize());
  child.send(handleOf(words + 3));  // of the allocation, not the address: the child gets its base
  EXPECT_CUDA(launch(awaitFlagKernel, words, 1));
  EXPECT_CUDA(launch(storeFlagKernel, words + 1, 2));
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(child.receive<int>(), 1);
  EXPECT_CUDA(cudaFree(words));
  EXPECT_EQ(child.join(), 0);
}

TEST_F(RuntimeIpc, HandlesAreRefusedWhereCudaRefusesThem) {
  auto* words = allocate<uint64_t>(4);
  char* pinned = nullptr;
  EXPECT_CUDA(cudaHostAlloc(&pinned, 16, 0));
  cudaIpcMemHandle_t handle{};
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, pinned), cudaErrorInvalidValue);
  EXPECT_CUDA(cudaFreeHost(pinned));
  handle = handleOf(words);
  open(handle, cudaErrorDeviceUninitialized);  // the exporting process
  Child child([&](Child& self) {
    void* data = nullptr;
    EXPECT_EQ(cudaIpcOpenMemHandle(&data, handle, 0), cudaErrorInvalidValue);
    EXPECT_EQ(cudaIpcOpenMemHandle(&data, {}, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidValue);
    // Twice: the same mapping, closed twice.
    uint64_t* first = open(handle);
    EXPECT_EQ(open(handle), first);
    EXPECT_EQ(cudaIpcGetMemHandle(&handle, first), cudaErrorInvalidValue);  // not this process's to export
    EXPECT_EQ(cudaFree(first), cudaErrorInvalidValue);
    EXPECT_CUDA(cudaIpcCloseMemHandle(first));
    EXPECT_EQ(liveObjects().size(), 1u);
    EXPECT_CUDA(cudaIpcCloseMemHandle(first));
    self.send(1);
    self.receive<int>();  // freed meanwhile
    open(handle, cudaErrorMapBufferObjectFailed);
  });
  child.receive<int>();
  EXPECT_CUDA(cudaFree(words));
  child.send(1);
  EXPECT_EQ(child.join(), 0);
}

TEST_F(RuntimeIpc, NeedsPeerAccessAndSupport) {
  auto* words = allocate<uint64_t>(4);
  const cudaIpcMemHandle_t handle = handleOf(words);
  Child child([&](Child&) {
    Machine machine;
    machine.peerAccess = [](int, int) { return false; };
    restart(machine);
    EXPECT_CUDA(cudaIpcCloseMemHandle(open(handle)));  // the same device
    EXPECT_CUDA(cudaSetDevice(1));
    open(handle, cudaErrorPeerAccessUnsupported);
    machine.visible = {3, 0};  // the exporter's device 0 is this process's 1
    restart(machine);
    open(handle, cudaErrorPeerAccessUnsupported);
    EXPECT_CUDA(cudaSetDevice(1));
    EXPECT_CUDA(cudaIpcCloseMemHandle(open(handle)));
    machine.ipc = false;
    restart(machine);
    open(handle, cudaErrorNotSupported);
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_CUDA(cudaFree(words));
}

TEST_F(RuntimeIpc, UseAfterCloseTraps) {
  auto* words = allocate<uint64_t>(4);
  const cudaIpcMemHandle_t handle = handleOf(words);
  Child child([&](Child&) {
    setTraps(Traps::Error);
    uint64_t* mapped = open(handle);
    EXPECT_CUDA(cudaIpcCloseMemHandle(mapped));
    EXPECT_CUDA(launch(storeFlagKernel, mapped, 1));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    EXPECT_NE(trapReports().at(0).find("after its IPC handle was closed"), std::string::npos);
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_CUDA(cudaFree(words));
}

TEST_F(RuntimeIpc, UseAfterTheExporterFreedEndsTheProcess) {
  auto* words = allocate<uint64_t>(4);
  const cudaIpcMemHandle_t handle = handleOf(words);
  Child child([&](Child& self) {
    uint64_t* mapped = open(handle);
    self.send(1);
    self.receive<int>();
    signal(SIGBUS, SIG_DFL);  // without the report
    EXPECT_CUDA(launch(storeFlagKernel, mapped, 1));
    EXPECT_CUDA(cudaDeviceSynchronize());
  });
  child.receive<int>();
  EXPECT_CUDA(cudaFree(words));
  child.send(1);
  EXPECT_EQ(child.join(), 128 + SIGBUS);
}

TEST_F(RuntimeIpc, MemoryOfADeadProcessCannotBeOpened) {
  Child exporter([](Child& self) {
    self.send(handleOf(allocate<uint64_t>(4)));
    self.receive<int>();
  });
  const auto handle = exporter.receive<cudaIpcMemHandle_t>();
  uint64_t* mapped = open(handle);
  write<uint64_t>(mapped, 5);
  exporter.send(1);
  EXPECT_EQ(exporter.join(), 0);
  EXPECT_EQ(read(mapped), 5u);  // what was mapped stays
  EXPECT_CUDA(cudaIpcCloseMemHandle(mapped));
  open(handle, cudaErrorMapBufferObjectFailed);
}

TEST_F(RuntimeIpc, EventsOrderProcesses) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventInterprocess), cudaErrorInvalidValue);
  event = makeEvent(cudaEventInterprocess | cudaEventDisableTiming);
  const cudaEvent_t local = makeEvent();
  cudaIpcEventHandle_t handle{};
  EXPECT_EQ(cudaIpcGetEventHandle(&handle, local), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaIpcGetEventHandle(&handle, event));
  cudaEvent_t same = nullptr;
  EXPECT_EQ(cudaIpcOpenEventHandle(&same, handle), cudaErrorDeviceUninitialized);
  const cudaStream_t stream = makeStream();
  Gate gate;
  gate.close(stream);
  EXPECT_CUDA(cudaEventRecord(event, stream));
  Child child([&](Child& self) {
    cudaEvent_t opened = nullptr;
    EXPECT_CUDA(cudaIpcOpenEventHandle(&opened, handle));
    EXPECT_EQ(cudaEventQuery(opened), cudaErrorNotReady);
    const cudaStream_t waiting = makeStream();
    EXPECT_CUDA(cudaStreamWaitEvent(waiting, opened, 0));
    EXPECT_EQ(cudaStreamQuery(waiting), cudaErrorNotReady);
    self.send(1);
    EXPECT_CUDA(cudaStreamSynchronize(waiting));
    EXPECT_CUDA(cudaEventQuery(opened));
    EXPECT_CUDA(cudaEventDestroy(opened));
    EXPECT_CUDA(cudaStreamDestroy(waiting));
    EXPECT_EQ(liveObjects(), std::vector<std::string>{});
  });
  child.receive<int>();
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  gate.open();
  EXPECT_EQ(child.join(), 0);
  EXPECT_CUDA(cudaEventDestroy(event));
  EXPECT_CUDA(cudaEventDestroy(local));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace peal::cudasim

// The simulated runtime: devices, memory, errors, error injection.
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/cudasim/core/memory.h"
#include "tests/cudasim/runtime_fixture.h"

namespace peal::cudasim {
namespace {

using RuntimeDevices = RuntimeTest;
using RuntimeMemory = RuntimeTest;
using RuntimeErrors = RuntimeTest;

// ---- devices ----

TEST_F(RuntimeDevices, AreCountedChosenAndDescribed) {
  int count = 0;
  EXPECT_CUDA(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 8);
  EXPECT_CUDA(cudaSetDevice(3));
  int device = -1;
  EXPECT_CUDA(cudaGetDevice(&device));
  EXPECT_EQ(device, 3);
  std::thread([] {
    int other = -1;
    EXPECT_CUDA(cudaGetDevice(&other));
    EXPECT_EQ(other, 0);  // of each thread
  }).join();
  EXPECT_EQ(cudaSetDevice(8), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);

  cudaDeviceProp prop{};
  EXPECT_CUDA(cudaGetDeviceProperties(&prop, 3));
  int multiprocessors = 0;
  EXPECT_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 3));
  EXPECT_EQ(prop.multiProcessorCount, multiprocessors);
  EXPECT_EQ(prop.major, 9);
  char busId[32];
  EXPECT_CUDA(cudaDeviceGetPCIBusId(busId, sizeof busId, 3));
  EXPECT_CUDA(cudaDeviceGetByPCIBusId(&device, busId));
  EXPECT_EQ(device, 3);
  EXPECT_EQ(cudaDeviceGetPCIBusId(busId, 4, 3), cudaErrorInvalidValue);
}

TEST_F(RuntimeDevices, VisibleOnesKeepTheirIdentity) {
  cudaDeviceProp whole{};
  EXPECT_CUDA(cudaGetDeviceProperties(&whole, 5));
  Machine machine;
  machine.visible = {5, 2};
  restart(machine);
  int count = 0;
  EXPECT_CUDA(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 2);
  cudaDeviceProp seen{};
  EXPECT_CUDA(cudaGetDeviceProperties(&seen, 0));
  EXPECT_EQ(std::memcmp(&seen.uuid, &whole.uuid, sizeof seen.uuid), 0);
  EXPECT_EQ(seen.pciBusID, whole.pciBusID);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
}

TEST_F(RuntimeDevices, ComeFromTheEnvironment) {
  setenv("CUDASIM_DEVICES", "4", 1);
  setenv("CUDA_VISIBLE_DEVICES", "3,1,7", 1);  // 7 is none: the list ends
  setenv("CUDASIM_CC", "80", 1);
  restart();
  int count = 0;
  EXPECT_CUDA(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 2);
  int major = 0;
  EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  EXPECT_EQ(major, 8);
  unsetenv("CUDASIM_DEVICES");
  unsetenv("CUDA_VISIBLE_DEVICES");
  unsetenv("CUDASIM_CC");
}

TEST_F(RuntimeDevices, AnOldDriverFailsEverythingButTheVersions) {
  Machine machine;
  machine.driverVersion = 12040;
  restart(machine);
  int count = -7;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, -7);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorInsufficientDriver);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 16), cudaErrorInsufficientDriver);
  int version = 0;
  EXPECT_CUDA(cudaDriverGetVersion(&version));
  EXPECT_EQ(version, 12040);
  EXPECT_CUDA(cudaRuntimeGetVersion(&version));
  EXPECT_EQ(version, 13000);
}

TEST_F(RuntimeDevices, NoneIsAnError) {
  Machine machine;
  machine.devices = 0;
  restart(machine);
  int count = -7;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorNoDevice);
}

TEST_F(RuntimeDevices, EnablePeerAccessOnceWhereThereIsSome) {
  Machine machine;
  machine.peerAccess = [](int device, int peer) { return device / 2 == peer / 2; };
  restart(machine);
  int can = -1;
  EXPECT_CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  EXPECT_CUDA(cudaDeviceCanAccessPeer(&can, 0, 2));
  EXPECT_EQ(can, 0);
  EXPECT_CUDA(cudaDeviceCanAccessPeer(&can, 0, 0));
  EXPECT_EQ(can, 0);
  int atomics = -1;
  EXPECT_CUDA(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, 0, 1));
  EXPECT_EQ(atomics, 1);
  EXPECT_CUDA(cudaDeviceEnablePeerAccess(1, 0));
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(2, 0), cudaErrorPeerAccessUnsupported);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorInvalidDevice);
  EXPECT_CUDA(cudaDeviceDisablePeerAccess(1));
  EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
}

TEST_F(RuntimeDevices, DriverFunctionsAreFoundByName) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status{};
  EXPECT_CUDA(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, 3020, 0, &status));
  EXPECT_EQ(status, cudaDriverEntryPointSuccess);
  auto* data = allocate<char>(100);
  unsigned long long base = 0;
  size_t bytes = 0;
  using GetRange = int (*)(unsigned long long*, size_t*, unsigned long long);
  const auto getRange = reinterpret_cast<GetRange>(function);
  EXPECT_EQ(getRange(&base, &bytes, reinterpret_cast<unsigned long long>(data) + 60), 0);
  EXPECT_EQ(base, reinterpret_cast<unsigned long long>(data));
  EXPECT_EQ(bytes, 100u);
  EXPECT_EQ(getRange(&base, &bytes, reinterpret_cast<unsigned long long>(data) + 100), 500);
  EXPECT_CUDA(cudaFree(data));

  EXPECT_CUDA(cudaGetDriverEntryPointByVersion("cuMulticastCreate", &function, 12000, 0, &status));
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuMulticastCreate", &function, 12000, 0),
            cudaErrorSymbolNotFound);
  int something = 0;
  setDriverFunction("cuMulticastCreate", &something);
  EXPECT_CUDA(cudaGetDriverEntryPointByVersion("cuMulticastCreate", &function, 12000, 0));
  EXPECT_EQ(function, &something);
  setDriverFunction("cuMulticastCreate", nullptr);
}

// ---- memory ----

TEST_F(RuntimeMemory, IsGarbageThenWhatIsCopied) {
  auto* data = allocate<uint32_t>(1000);
  EXPECT_TRUE(isTagged(data));
  EXPECT_NE(read(data + 999), 0u);
  std::vector<uint32_t> values(1000, 7);
  EXPECT_CUDA(cudaMemcpy(data, values.data(), 4000, cudaMemcpyHostToDevice));
  auto* copy = allocate<uint32_t>(1000);
  EXPECT_CUDA(cudaMemcpy(copy, data, 4000, cudaMemcpyDeviceToDevice));
  EXPECT_EQ(read(copy + 999), 7u);
  EXPECT_CUDA(cudaMemset(copy, 1, 4));
  EXPECT_EQ(read(copy), 0x01010101u);
  EXPECT_EQ(read(copy + 1), 7u);
  EXPECT_CUDA(cudaFree(data));
  EXPECT_CUDA(cudaFree(copy));
  EXPECT_CUDA(cudaFree(nullptr));
}

TEST_F(RuntimeMemory, RefusesWhatLiesOutsideOrPointsTheWrongWay) {
  auto* data = allocate<char>(100);
  char host[200] = {};
  EXPECT_EQ(cudaMemcpy(data, host, 101, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, data + 50, 51, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, data, 10, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host, 0, 10), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(data + 1), cudaErrorInvalidValue);
  EXPECT_CUDA(cudaFree(data));
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(data, host, 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
}

TEST_F(RuntimeMemory, EndsWithTheDevice) {
  Machine machine;
  machine.memoryBytes = 1 << 20;
  restart(machine);
  size_t free = 0;
  size_t total = 0;
  auto* data = allocate<char>(600 << 10);
  EXPECT_CUDA(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(total, size_t{1} << 20);
  EXPECT_EQ(free, size_t{424} << 10);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 600 << 10), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_CUDA(cudaMalloc(&more, 600 << 10));
  EXPECT_CUDA(cudaFree(more));
  EXPECT_CUDA(cudaFree(data));
}

TEST_F(RuntimeMemory, KnowsWhatAnAddressIs) {
  EXPECT_CUDA(cudaSetDevice(2));
  auto* data = allocate<char>(100);
  cudaPointerAttributes attributes{};
  EXPECT_CUDA(cudaPointerGetAttributes(&attributes, data + 99));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 2);
  EXPECT_EQ(attributes.devicePointer, data + 99);
  EXPECT_EQ(attributes.hostPointer, nullptr);
  EXPECT_CUDA(cudaFree(data));
  EXPECT_CUDA(cudaPointerGetAttributes(&attributes, data));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);

  char* pinned = nullptr;
  EXPECT_CUDA(cudaHostAlloc(&pinned, 100, cudaHostAllocMapped));
  pinned[99] = 1;
  EXPECT_CUDA(cudaPointerGetAttributes(&attributes, pinned));
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  char* onDevice = nullptr;
  EXPECT_CUDA(cudaHostGetDevicePointer(&onDevice, pinned, 0));
  EXPECT_EQ(onDevice, pinned);
  EXPECT_EQ(cudaFree(pinned), cudaErrorInvalidValue);
  EXPECT_CUDA(cudaFreeHost(pinned));
}

TEST_F(RuntimeMemory, RegistersHostRangesOnce) {
  std::vector<char> data(1000);
  EXPECT_CUDA(cudaHostRegister(data.data(), 500, cudaHostRegisterMapped));
  EXPECT_EQ(cudaHostRegister(data.data() + 499, 10, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_CUDA(cudaHostRegister(data.data() + 500, 500, 0));
  EXPECT_EQ(liveObjects().size(), 2u);
  EXPECT_CUDA(cudaHostUnregister(data.data()));
  EXPECT_EQ(cudaHostUnregister(data.data()), cudaErrorHostMemoryNotRegistered);
  EXPECT_CUDA(cudaHostUnregister(data.data() + 500));
  void* onDevice = nullptr;
  EXPECT_EQ(cudaHostGetDevicePointer(&onDevice, data.data(), 0), cudaErrorInvalidValue);
}

using RuntimeMemoryDeathTest = RuntimeTest;

TEST_F(RuntimeMemoryDeathTest, HostAccessIsReported) {
  EXPECT_DEATH(
      {
        cudaSetDevice(3);
        volatile char* data = allocate<char>(100);
        data[8] = 1;
      },
      "host code touched device memory, at or near .*: byte [0-9]+ of an allocation of 100 bytes on device "
      "3");
}

// ---- errors ----

TEST_F(RuntimeErrors, HaveNamesAndSentences) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  EXPECT_STREQ(cudaGetErrorString(cudaSuccess), "no error");
  EXPECT_STREQ(cudaGetErrorName(static_cast<cudaError_t>(5555)), "unrecognized error code");
}

TEST_F(RuntimeErrors, TheLastOneStaysUntilItIsTaken) {
  EXPECT_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
  int device = 0;
  EXPECT_CUDA(cudaGetDevice(&device));
  std::thread([] { EXPECT_CUDA(cudaPeekAtLastError()); }).join();
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_CUDA(cudaGetLastError());
}

TEST_F(RuntimeErrors, AreInjectedIntoTheNthCall) {
  void* data = nullptr;
  failCall("cudaMalloc", 2);
  EXPECT_CUDA(cudaMalloc(&data, 16));
  void* none = nullptr;
  EXPECT_EQ(cudaMalloc(&none, 16), cudaErrorMemoryAllocation);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  failCall("cudaMalloc", 1, cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaMalloc(&none, 16), cudaErrorECCUncorrectable);
  // What ends something ends it all the same.
  failCall("*", 1, cudaErrorUnknown);
  EXPECT_EQ(cudaFree(data), cudaErrorUnknown);
  EXPECT_EQ(liveObjects(), std::vector<std::string>{});
  failCall("cudaMalloc", 1);
  failNothing();
  EXPECT_CUDA(cudaMalloc(&data, 16));
  EXPECT_CUDA(cudaFree(data));
}

TEST_F(RuntimeErrors, SweepOverAllCalls) {
  // Code under test that undoes what it did.
  const auto work = [] {
    void* data = nullptr;
    cudaStream_t stream = nullptr;
    bool ok = cudaMalloc(&data, 64) == cudaSuccess;
    ok = ok && cudaStreamCreate(&stream) == cudaSuccess;
    ok = ok && cudaMemsetAsync(data, 0, 64, stream) == cudaSuccess;
    if (stream != nullptr) {
      ok = (cudaStreamDestroy(stream) == cudaSuccess) && ok;
    }
    if (data != nullptr) {
      ok = (cudaFree(data) == cudaSuccess) && ok;
    }
    return ok;
  };
  countCalls();
  EXPECT_TRUE(work());
  const uint64_t calls = callCount();
  EXPECT_EQ(calls, 5u);
  EXPECT_EQ(callName(3), "cudaMemsetAsync");
  EXPECT_EQ(callCount("cudaFree"), 1u);
  for (uint64_t n = 1; n <= calls; n++) {
    failCall("*", n);
    EXPECT_FALSE(work()) << callName(n);
    EXPECT_EQ(liveObjects(), std::vector<std::string>{}) << callName(n);
  }
}

using RuntimeErrorsDeathTest = RuntimeTest;

TEST_F(RuntimeErrorsDeathTest, ComeFromTheEnvironment) {
  const auto exitWith = [] {
    void* data = nullptr;
    cudaMalloc(&data, 16);
    std::_Exit(cudaMalloc(&data, 16));
  };
  setenv("CUDASIM_FAIL", "cudaMalloc:2:cudaErrorIllegalAddress", 1);
  EXPECT_EXIT(exitWith(), ::testing::ExitedWithCode(700 % 256), "");
  setenv("CUDASIM_FAIL", "cudaMalloc:2", 1);
  EXPECT_EXIT(exitWith(), ::testing::ExitedWithCode(cudaErrorMemoryAllocation), "");
  setenv("CUDASIM_FAIL", "cudaMalloc:0", 1);
  EXPECT_EXIT(exitWith(), ::testing::ExitedWithCode(2), "counted from 1");
  unsetenv("CUDASIM_FAIL");
}

TEST_F(RuntimeErrors, AForkedChildCannotGoOn) {
  auto* data = allocate<char>(16);
  const pid_t child = fork();
  if (child == 0) {
    int device = 0;
    _exit(cudaGetDevice(&device) == cudaErrorInitializationError ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_CUDA(cudaFree(data));
}

}  // namespace
}  // namespace peal::cudasim

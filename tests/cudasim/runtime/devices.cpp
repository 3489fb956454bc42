// Devices: how many, which, what they can, and access between them.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>

#include "tests/cudasim/runtime/api.h"
#include "tests/cudasim/runtime/capture.h"

using namespace peal::cudasim;

namespace {

// Of an H200 where tests do not say otherwise.
constexpr int kClockKhz = 1980000, kMemoryClockKhz = 3201000, kBusBits = 6144, kRegisters = 65536;
constexpr int kL2Bytes = 60 << 20, kMostThreads = 1024, kFirstBus = 0x10;
constexpr int kDefaultShared = 48 << 10;

std::optional<int> attributeOf(const Machine& machine, int physical, cudaDeviceAttr attribute) {
  const int shared = static_cast<int>(sharedPerMultiprocessor(machine));
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return kMostThreads;
    case cudaDevAttrMaxBlockDimZ:
      return 64;
    case cudaDevAttrMaxGridDimX:
      return 0x7fffffff;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return kDefaultShared;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return shared - 1024;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return shared;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return 1024;
    case cudaDevAttrWarpSize:
      return 32;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return kRegisters;
    case cudaDevAttrClockRate:
      return kClockKhz;
    case cudaDevAttrMemoryClockRate:
      return kMemoryClockKhz;
    case cudaDevAttrGlobalMemoryBusWidth:
      return kBusBits;
    case cudaDevAttrL2CacheSize:
      return kL2Bytes;
    case cudaDevAttrMultiProcessorCount:
      return machine.multiprocessors;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return machine.threadsPerMultiprocessor;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return machine.blocksPerMultiprocessor;
    case cudaDevAttrComputeCapabilityMajor:
      return machine.capabilityMajor;
    case cudaDevAttrComputeCapabilityMinor:
      return machine.capabilityMinor;
    case cudaDevAttrComputeMode:
      return cudaComputeModeDefault;
    case cudaDevAttrPciDomainId:
    case cudaDevAttrPciDeviceId:
      return 0;
    case cudaDevAttrPciBusId:
      return kFirstBus + physical;
    case cudaDevAttrAsyncEngineCount:
      return 3;
    case cudaDevAttrIpcEventSupport:
      return machine.ipc ? 1 : 0;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostRegisterSupported:
      return 1;
    case cudaDevAttrKernelExecTimeout:
    case cudaDevAttrIntegrated:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrHostNativeAtomicSupported:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported:
      return 0;  // the simulator has none of them
    case cudaDevAttrGPUDirectRDMASupported:
      return 1;
    case cudaDevAttrGPUDirectRDMAFlushWritesOptions:
      return machine.canFlushWrites ? cudaFlushGPUDirectRDMAWritesOptionHost : 0;
    case cudaDevAttrGPUDirectRDMAWritesOrdering:
      return machine.flushWrites || !machine.canFlushWrites ? cudaGPUDirectRDMAWritesOrderingNone
                                                            : cudaGPUDirectRDMAWritesOrderingOwner;
  }
  return std::nullopt;
}

std::string busIdOf(int physical) { return fmt::format("0000:{:02X}:00.0", kFirstBus + physical); }

cudaDeviceProp propertiesOf(const Machine& machine, int physical) {
  const auto number = [&](cudaDeviceAttr attribute) { return *attributeOf(machine, physical, attribute); };
  cudaDeviceProp prop{};
  std::snprintf(prop.name, sizeof prop.name, "cudasim device");
  std::memcpy(prop.uuid.bytes, "cudasim device", 14);
  prop.uuid.bytes[15] = static_cast<char>(physical);
  prop.totalGlobalMem = machine.memoryBytes;
  prop.sharedMemPerBlock = kDefaultShared;
  prop.regsPerBlock = prop.regsPerMultiprocessor = kRegisters;
  prop.warpSize = 32;
  prop.maxThreadsPerBlock = kMostThreads;
  prop.maxThreadsDim[0] = prop.maxThreadsDim[1] = kMostThreads;
  prop.maxThreadsDim[2] = 64;
  prop.maxGridSize[0] = 0x7fffffff;
  prop.maxGridSize[1] = prop.maxGridSize[2] = 65535;
  prop.major = machine.capabilityMajor;
  prop.minor = machine.capabilityMinor;
  prop.multiProcessorCount = machine.multiprocessors;
  prop.canMapHostMemory = prop.concurrentKernels = prop.ECCEnabled = prop.unifiedAddressing = 1;
  prop.streamPrioritiesSupported = prop.canUseHostPointerForRegisteredMem = prop.hostRegisterSupported = 1;
  prop.pciBusID = kFirstBus + physical;
  prop.asyncEngineCount = number(cudaDevAttrAsyncEngineCount);
  prop.memoryBusWidth = kBusBits;
  prop.l2CacheSize = kL2Bytes;
  prop.maxThreadsPerMultiProcessor = machine.threadsPerMultiprocessor;
  prop.maxBlocksPerMultiProcessor = machine.blocksPerMultiprocessor;
  prop.sharedMemPerMultiprocessor = sharedPerMultiprocessor(machine);
  prop.sharedMemPerBlockOptin = static_cast<size_t>(number(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  prop.ipcEventSupported = machine.ipc ? 1 : 0;
  return prop;
}

int p2pAttributeOf(const Machine& machine, cudaDeviceP2PAttr attribute, int src, int dst) {
  if (machine.p2pAttribute) {
    return machine.p2pAttribute(attribute, src, dst);
  }
  const bool access = !machine.peerAccess || machine.peerAccess(src, dst);
  return attribute == cudaDevP2PAttrPerformanceRank ? 0 : access ? 1 : 0;
}

// Whether the devices are two, and this process's.
bool arePair(int device, int peer) {
  return runtime().isDevice(device) && runtime().isDevice(peer) && device != peer;
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  return call({"cudaGetDeviceCount", cudaErrorUnknown}, [&](Lock&) {
    if (count == nullptr) {
      return cudaErrorInvalidValue;
    }
    *count = runtime().visibleDevices();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  const Function function{
      .name = "cudaSetDevice", .usualError = cudaErrorDevicesUnavailable, .needsDevice = false};
  return call(function, [&](Lock&) {
    if (!runtime().isDevice(device)) {
      return cudaErrorInvalidDevice;
    }
    setCurrentDevice(device);
    return runtime().lostOr(device, cudaSuccess);
  });
}

cudaError_t cudaGetDevice(int* device) {
  const Function function{.name = "cudaGetDevice", .usualError = cudaErrorUnknown, .needsDevice = false};
  return call(function, [&](Lock&) {
    if (device == nullptr) {
      return cudaErrorInvalidValue;
    }
    *device = currentDevice();
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  return call({"cudaGetDeviceProperties", cudaErrorUnknown}, [&](Lock&) {
    if (prop == nullptr || !runtime().isDevice(device)) {
      return prop == nullptr ? cudaErrorInvalidValue : cudaErrorInvalidDevice;
    }
    *prop = propertiesOf(runtime().machine, runtime().physical(device));
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  return call({"cudaDeviceGetAttribute", cudaErrorUnknown}, [&](Lock&) {
    if (!runtime().isDevice(device)) {
      return cudaErrorInvalidDevice;
    }
    const std::optional<int> found = attributeOf(runtime().machine, runtime().physical(device), attr);
    if (value == nullptr || !found) {
      return cudaErrorInvalidValue;
    }
    *value = *found;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget target,
                                               cudaFlushGPUDirectRDMAWritesScope scope) {
  return call({"cudaDeviceFlushGPUDirectRDMAWrites", cudaErrorNotSupported}, [&](Lock&) {
    if (target != cudaFlushGPUDirectRDMAWritesTargetCurrentDevice || !runtime().machine.canFlushWrites) {
      return cudaErrorNotSupported;
    }
    if (scope != cudaFlushGPUDirectRDMAWritesToOwner && scope != cudaFlushGPUDirectRDMAWritesToAllDevices) {
      return cudaErrorInvalidValue;
    }
    if (runtime().machine.flushWrites) {
      runtime().machine.flushWrites(runtime().physical(currentDevice()));
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* pciBusId, int len, int device) {
  return call({"cudaDeviceGetPCIBusId", cudaErrorUnknown}, [&](Lock&) {
    if (!runtime().isDevice(device)) {
      return cudaErrorInvalidDevice;
    }
    const std::string text = busIdOf(runtime().physical(device));
    if (pciBusId == nullptr || len <= static_cast<int>(text.size())) {
      return cudaErrorInvalidValue;
    }
    std::memcpy(pciBusId, text.c_str(), text.size() + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* pciBusId) {
  return call({"cudaDeviceGetByPCIBusId", cudaErrorUnknown}, [&](Lock&) {
    if (device == nullptr || pciBusId == nullptr) {
      return cudaErrorInvalidValue;
    }
    for (int candidate = 0; candidate < runtime().visibleDevices(); candidate++) {
      if (busIdOf(runtime().physical(candidate)) == pciBusId) {
        *device = candidate;
        return cudaSuccess;
      }
    }
    return cudaErrorInvalidDevice;
  });
}

cudaError_t cudaDriverGetVersion(int* driverVersion) {
  const Function function{
      .name = "cudaDriverGetVersion", .usualError = cudaErrorUnknown, .needsDriver = false};
  return call(function, [&](Lock&) {
    if (driverVersion == nullptr) {
      return cudaErrorInvalidValue;
    }
    *driverVersion = runtime().machine.driverVersion;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* runtimeVersion) {
  const Function function{
      .name = "cudaRuntimeGetVersion", .usualError = cudaErrorUnknown, .needsDriver = false};
  return call(function, [&](Lock&) {
    if (runtimeVersion == nullptr) {
      return cudaErrorInvalidValue;
    }
    *runtimeVersion = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice) {
  return call({"cudaDeviceCanAccessPeer", cudaErrorUnknown}, [&](Lock&) {
    if (!runtime().isDevice(device) || !runtime().isDevice(peerDevice)) {
      return cudaErrorInvalidDevice;
    }
    if (canAccessPeer == nullptr) {
      return cudaErrorInvalidValue;
    }
    *canAccessPeer = runtime().mayAccess(device, peerDevice) ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags) {
  return call({"cudaDeviceEnablePeerAccess", cudaErrorPeerAccessUnsupported, true}, [&](Lock& lock) {
    if (!arePair(currentDevice(), peerDevice)) {
      return cudaErrorInvalidDevice;
    }
    if (flags != 0) {
      return cudaErrorInvalidValue;
    }
    if (!runtime().mayAccess(currentDevice(), peerDevice)) {
      return cudaErrorPeerAccessUnsupported;
    }
    if (!runtime().peers.insert({currentDevice(), peerDevice}).second) {
      return cudaErrorPeerAccessAlreadyEnabled;
    }
    runtime().memory.applyPeerAccess(lock);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peerDevice) {
  const Function function{.name = "cudaDeviceDisablePeerAccess",
                          .usualError = cudaErrorUnknown,
                          .unsafeInCapture = true,
                          .releases = true};
  return call(function, [&](Lock& lock) {
    if (!arePair(currentDevice(), peerDevice)) {
      return cudaErrorInvalidDevice;
    }
    if (runtime().peers.erase({currentDevice(), peerDevice}) == 0) {
      return cudaErrorPeerAccessNotEnabled;
    }
    runtime().memory.applyPeerAccess(lock);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attr, int srcDevice, int dstDevice) {
  return call({"cudaDeviceGetP2PAttribute", cudaErrorUnknown}, [&](Lock&) {
    if (!arePair(srcDevice, dstDevice)) {
      return cudaErrorInvalidDevice;
    }
    if (value == nullptr || attr < cudaDevP2PAttrPerformanceRank ||
        attr > cudaDevP2PAttrCudaArrayAccessSupported) {
      return cudaErrorInvalidValue;
    }
    *value =
        p2pAttributeOf(runtime().machine, attr, runtime().physical(srcDevice), runtime().physical(dstDevice));
    return cudaSuccess;
  });
}

// The benches of a build without CUDA: a command line that asks for a GPU is refused before anything else
// here can be reached.
#include "bench/harness/gpu.h"
#include "tools/common/error.h"

namespace peal::bench {
namespace {

[[noreturn]] void refuse() {
  throw tools::UsageError(
      "--device: this bench was built without CUDA (PEAL_CUDA=OFF), so it measures host memory only: leave "
      "the flag out.");
}

}  // namespace

void expectGpus() { refuse(); }
int chooseDevice(int, int) { refuse(); }
std::string deviceName(int) { refuse(); }
size_t freeDeviceBytes(int) { refuse(); }
void useDevice(int) { refuse(); }
void copyToDevice(void*, const void*, size_t) { refuse(); }
void copyFromDevice(void*, const void*, size_t) { refuse(); }
void* allocateOnDevice(size_t) { refuse(); }
void freeOnDevice(void*) {}  // nothing was allocated
DeviceStream::DeviceStream() { refuse(); }
DeviceStream::~DeviceStream() = default;
void DeviceStream::synchronize() { refuse(); }
DeviceGraph::DeviceGraph(DeviceStream&, const std::function<void()>&) { refuse(); }
DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::launch(DeviceStream&) { refuse(); }

}  // namespace peal::bench

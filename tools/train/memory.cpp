#include "tools/train/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tools/common/error.h"
#include "tools/train/model.h"

namespace peal::train {

double rankBytes(const TrainOptions& options, const ModelShape& shape, int size) {
  // Bytes of a parameter that every rank holds, and that are shared out (ZeRO's formulas).
  const double optimizer = options.engine.optimizerBytes(), gradient = options.engine.gradientBytes();
  const double whole[] = {2 + gradient + optimizer, 2 + gradient, 2, 0};
  const double sharded[] = {0, optimizer, gradient + optimizer, 2 + gradient + optimizer};
  constexpr double kFirstValue = 4;
  const double perParameter =
      whole[options.stage] + sharded[options.stage] / options.shards(size) + kFirstValue;
  return perParameter * parametersOf(shape) +
         workspaceBytesFor(shape, options.batch, options.activations, options.device);
}

namespace {
constexpr double kGib = 1 << 30;
}

void checkMemory(const TrainOptions& options, const ModelShape& shape, int size, int localSize) {
  const double machine =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const double needed = localSize * rankBytes(options, shape, size);
  if (options.device == ComputeDevice::Host && needed > machine) {
    throw tools::UsageError(
        fmt::format("this model of {:.3g} parameters needs about {:.4g} GiB for {} ranks on this machine, "
                    "which has {:.4g} GiB. Use "
                    "a smaller --width, --layers, --context or --batch, or a higher --stage",
                    parametersOf(shape), needed / kGib, localSize, machine / kGib));
  }
}

void checkDeviceMemory(const TrainOptions& options, const ModelShape& shape, int size, int device) {
  const double needed = rankBytes(options, shape, size);
  const auto available = static_cast<double>(freeCudaBytes(device));
  if (needed > available) {
    throw tools::UsageError(fmt::format(
        "this model of {:.3g} parameters needs about {:.4g} GiB for each rank, and GPU {} has {:.4g} GiB "
        "free. Use a smaller --width, --layers, --context or --batch, --recompute, a higher --stage, or "
        "fewer ranks on each GPU",
        parametersOf(shape), needed / kGib, device, available / kGib));
  }
}

ResidentMemory residentMemory() {
  ResidentMemory memory{};
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const auto valueOf = [&line] { return 1024 * std::stoull(line.substr(line.find(':') + 1)); };  // in kB
    if (line.starts_with("VmRSS:")) {
      memory.nowBytes = valueOf();
    } else if (line.starts_with("VmHWM:")) {
      memory.peakBytes = valueOf();
    }
  }
  return memory;
}

}  // namespace peal::train

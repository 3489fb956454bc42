#include "lib/tuner/device_costs.h"

#include <algorithm>

namespace peal {
namespace {

constexpr double kUsPerByteOfGigabytes = 1e-3;  // 1 GB/s

// NCCL's model of its own ring (github.com/NVIDIA/nccl, src/graph/tuning.cc of commit 01afd20a): a step takes
// 0.47, 1.9 and 3.4 us over NVLink and 1.0, 2.5 and 5.7 over PCIe by LL, LL128 and Simple; a call 3.6 us
// besides; a channel moves at most 18.8 GB/s (LL128, broadcast). src/graph/topo.h of commit 069a3d4f: an
// NVLink of an H100 20.6 GB/s, PCIe 3.0 x16 12. H100 (data sheet): 18 NVLinks; A100 40 GB: 1555 GB/s of
// memory.
constexpr double kLaunchUs = 3.6;
constexpr double kBlockBytes = 18.8;
constexpr double kNvlinkBytes = 18 * 20.6;
constexpr double kPcieBytes = 12;
constexpr double kMemoryBytes = 1555;
// No source: a guess, so that blocks which have next to nothing to do are not started.
constexpr double kBlockUs = 0.1;

GpuCost costOf(double llUs, double ll128Us, double simpleUs, double linkGigabytes) {
  return {.launchUs = kLaunchUs,
          .blockUs = kBlockUs,
          .llUs = llUs,
          .ll128Us = ll128Us,
          .simpleUs = simpleUs,
          .blockUsPerByte = kUsPerByteOfGigabytes / kBlockBytes,
          .linkUsPerByte = kUsPerByteOfGigabytes / linkGigabytes};
}

double stepUs(const GpuCost& cost, Protocol protocol) {
  return protocol == Protocol::LL ? cost.llUs : protocol == Protocol::LL128 ? cost.ll128Us : cost.simpleUs;
}

}  // namespace

GpuCost assumedGpuCost(GpuPath path) {
  switch (path) {
    case GpuPath::SameDevice:  // a byte is written to memory and read from it; latencies: no source, NVLink's
      return costOf(0.47, 1.9, 3.4, kMemoryBytes / 2);
    case GpuPath::Nvlink:
      return costOf(0.47, 1.9, 3.4, kNvlinkBytes);
    case GpuPath::Pcie:
      return costOf(1.0, 2.5, 5.7, kPcieBytes);
    case GpuPath::HostMemory:  // it crosses PCIe to the memory and from it
      break;
  }
  return costOf(2 * 1.0, 2 * 2.5, 2 * 5.7, kPcieBytes / 2);
}

GpuCost gpuCostOn(GpuPath path, GpuCost said) {
  const GpuCost assumed = assumedGpuCost(path);
  for (double GpuCost::*const value :
       {&GpuCost::launchUs, &GpuCost::blockUs, &GpuCost::llUs, &GpuCost::ll128Us, &GpuCost::simpleUs,
        &GpuCost::blockUsPerByte, &GpuCost::linkUsPerByte}) {
    if (said.*value < 0) {
      said.*value = assumed.*value;
    }
  }
  return said;
}

double wireFactor(Protocol protocol) {
  return protocol == Protocol::LL ? 2 : protocol == Protocol::LL128 ? 128.0 / 120 : 1;
}

LinkTable linksFor(const LinkTable& links, Protocol protocol, int channels, double blockSpeed) {
  const GpuCost& gpu = links.gpu;
  LinkTable made = links;
  made.inside.latencyUs = stepUs(gpu, protocol);
  made.inside.gapUs = 0;
  made.inside.usPerByte =
      wireFactor(protocol) * std::max(gpu.linkUsPerByte, gpu.blockUsPerByte / (channels * blockSpeed));
  // A step over PCIe at each end, which is one by way of host memory.
  made.between.latencyUs += assumedGpuCost(GpuPath::HostMemory).simpleUs;
  return made;
}

}  // namespace peal

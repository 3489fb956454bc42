// How the GPUs of a node reach each other's memory, best first. All ranks of a communicator take the slowest
// one for theirs, so that they choose alike.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace peal {

enum class GpuPath : uint8_t { SameDevice, Nvlink, Pcie, HostMemory };

constexpr std::array<const char*, 4> kGpuPathNames{"same_device", "nvlink", "pcie", "host_memory"};

constexpr const char* gpuPathName(GpuPath path) { return kGpuPathNames[static_cast<size_t>(path)]; }

constexpr std::optional<GpuPath> gpuPathNamed(std::string_view name) {
  for (size_t i = 0; i < kGpuPathNames.size(); ++i) {
    if (name == kGpuPathNames[i]) {
      return static_cast<GpuPath>(i);
    }
  }
  return std::nullopt;
}

// Whether a warp's store of a 128-byte line becomes visible as one (LL128).
constexpr bool keepsLinesWhole(GpuPath path) { return path <= GpuPath::Nvlink; }

}  // namespace peal

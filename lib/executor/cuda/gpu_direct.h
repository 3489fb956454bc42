// GPUDirect RDMA: whether the slots of a proxy's boxes lie in memory of the GPU, which the network's devices
// read and write there, or in host memory. All ranks of a communicator decide alike.
//
//   kernel --> outbox's slot ~~~ NIC ~~~~ NIC ~~~ inbox's slot --> kernel
//
// Called by setup.cpp before the proxy starts. Not verified on hardware.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/executor/cuda/proxy.h"

namespace peal::cuda {

enum class GpuDirect : int32_t { Auto, On, Off };  // PEAL_GPU_DIRECT

struct GpuDirectOptions {
  GpuDirect wish = GpuDirect::Auto;
  Deadline deadline;
  std::function<Result<std::unique_ptr<Endpoint>>()> connect;  // another network like the first; collective
};

// Collective. nullopt: they lie in host memory, and `why` says the reason. A network that was lost on trying
// it, on any rank, is replaced on all. An error on one rank is one on all: what all should have was wanted
// and cannot be, or there is no other network; the first may be gone then (nullptr).
Result<std::optional<ProxySlots>> placeSlots(Exchange& exchange, std::unique_ptr<Endpoint>& network,
                                             const std::vector<int>& peers, const ProxyOptions& proxy,
                                             const GpuDirectOptions& options, std::string& why);

}  // namespace peal::cuda

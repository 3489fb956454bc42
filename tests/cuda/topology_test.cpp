// GPUs of a topology as the CUDA runtime counts them, on simulated machines.
#include <cudasim/runtime.h>
#include <gtest/gtest.h>

#include "lib/topology/gpus.h"
#include "lib/topology/pci.h"
#include "tests/topology/system_folder.h"

namespace peal::test {
namespace {

class GpuTopology : public testing::Test {
 protected:
  void TearDown() override { cudasim::restart(); }
  MachineNode found() const {
    MachineNode node;
    discoverGpus(system_.roots(), node);
    return node;
  }
  SystemFolder system_;
};

std::string addressOf(int device) {
  char address[32] = "";
  EXPECT_EQ(cudaDeviceGetPCIBusId(address, sizeof address, device), cudaSuccess);
  return address;
}

TEST_F(GpuTopology, EachWithItsPlaceAndItsPeers) {
  cudasim::Machine machine;
  machine.devices = 4;
  machine.memoryBytes = size_t{1} << 30;
  machine.peerAccess = [](int device, int peer) { return device / 2 == peer / 2; };
  cudasim::restart(machine);
  system_.pci("pci0000:10/0000:10:01.0/" + pciPlaceOfAddress(addressOf(2)).address, 1);
  const MachineNode node = found();
  ASSERT_EQ(node.gpus.size(), 4u);
  EXPECT_TRUE(node.notes.empty());
  EXPECT_EQ(node.gpus[2].device, 2);
  EXPECT_EQ(node.gpus[2].peers, std::vector<int>{3});
  EXPECT_EQ(node.gpus[2].memoryBytes, size_t{1} << 30);
  EXPECT_FALSE(node.gpus[2].name.empty());
  EXPECT_EQ(node.gpus[2].place.bridges, (std::vector<std::string>{"pci0000:10", "0000:10:01.0"}));
  EXPECT_EQ(node.gpus[2].place.numaNode, 1);
  EXPECT_EQ(node.gpus[1].place.numaNode, -1) << "/sys does not know it";
}

TEST_F(GpuTopology, NumbersAreThoseOfTheProcess) {
  cudasim::Machine machine;
  machine.visible = {5, 2};
  cudasim::restart(machine);
  const MachineNode node = found();
  ASSERT_EQ(node.gpus.size(), 2u);
  EXPECT_EQ(node.gpus[0].place.address, pciPlaceOfAddress(addressOf(0)).address);
  EXPECT_EQ(node.gpus[1].peers, std::vector<int>{0});
}

TEST_F(GpuTopology, WhatFailsIsNoted) {
  cudasim::Machine none;
  none.driverVersion = 0;
  cudasim::restart(none);
  MachineNode node = found();
  EXPECT_TRUE(node.gpus.empty());
  ASSERT_EQ(node.notes.size(), 1u);
  EXPECT_NE(node.notes[0].find("No NVIDIA driver was found"), std::string::npos) << node.notes[0];

  cudasim::Machine machine;
  machine.devices = 3;
  for (const char* call : {"cudaGetDeviceProperties", "cudaDeviceGetPCIBusId", "cudaDeviceCanAccessPeer"}) {
    cudasim::restart(machine);
    cudasim::failCall(call, 1);
    node = found();
    EXPECT_EQ(node.gpus.size(), 2u) << call;
    ASSERT_EQ(node.notes.size(), 1u) << call;
    EXPECT_NE(node.notes[0].find(call), std::string::npos) << node.notes[0];
  }
}

TEST_F(GpuTopology, TheCurrentDeviceStaysAndNothingIsMade) {
  cudasim::restart();
  EXPECT_EQ(cudaSetDevice(3), cudaSuccess);
  found();
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 3);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace peal::test

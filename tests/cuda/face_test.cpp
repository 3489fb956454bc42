// The C++ face on simulated GPUs: device buffers as ranges, communicators on devices, CUDA streams.
#include <cuda_runtime.h>
#include <cudasim/runtime.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "peal/peal.hpp"

namespace {

TEST(GpuFace, CollectivesOnDeviceBuffers) {
  {
    const std::array<int, 2> devices{0, 1};
    std::vector<peal::Communicator> comms = peal::Communicator::all(devices);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < comms.size(); ++rank) {
      threads.emplace_back([&, rank] {
        peal::Communicator& comm = comms[rank];
        EXPECT_EQ(comm.device(), devices[rank]);
        ASSERT_EQ(cudaSetDevice(devices[rank]), cudaSuccess);
        cudaStream_t stream = nullptr;
        ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        std::vector<float> values(1000, static_cast<float>(rank + 1));
        peal::DeviceBuffer<float> buffer(values.size(), devices[rank]);
        ASSERT_EQ(cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(float), cudaMemcpyDefault),
                  cudaSuccess);
        comm.allReduce(buffer, pealSum, reinterpret_cast<pealStream_t>(stream));
        ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        ASSERT_EQ(cudaMemcpy(values.data(), buffer.data(), values.size() * sizeof(float), cudaMemcpyDefault),
                  cudaSuccess);
        EXPECT_EQ(values, std::vector<float>(1000, 3.0F));
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  EXPECT_TRUE(peal::cudasim::liveObjects().empty());
}

TEST(GpuFace, OptionsNameTheDevice) {
  EXPECT_EQ(peal::Options{}.config().device, PEAL_CONFIG_UNDEF_INT);
  EXPECT_EQ(peal::Options{.device = 3}.config().device, 3);
  EXPECT_THROW(peal::DeviceBuffer<float>(4, 77), peal::Error);
}

}  // namespace

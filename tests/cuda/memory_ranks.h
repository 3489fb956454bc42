// Ranks that share device memory on a simulated machine: in processes and threads as a test asks for, each
// with its control endpoint and its DeviceMemory.
//
// The test's own process never touches CUDA: ranks are always in children, which find a fresh runtime.
#pragma once
#include <cuda_runtime.h>
#include <cudasim/runtime.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/exchange.h"
#include "tests/support/processes.h"
#include "transports/cuda_ipc/lingering.h"
#include "transports/device_memory.h"
#include "transports/shm/shm.h"

namespace peal::test {

inline constexpr std::array<uint8_t, 32> kMemorySecret{7, 1, 7};
inline constexpr int kLimitMs = 30000;

// One rank: which process of the test, and which device of the machine.
struct Place {
  int process;
  int device;
};
using Layout = std::vector<Place>;

// What a rank's body sees.
struct MemoryRank {
  int rank;
  int size;
  int device;
  DeviceMemory* memory;  // nullptr: connecting failed
  std::string error;     // and why
  std::function<void()> destroy;
  Exchange& exchange;
  const Child& child;

  void meet() const { ASSERT_TRUE(exchange.allGather({})); }
  // What every rank says.
  std::vector<uint64_t> gather(uint64_t mine) const {
    std::vector<std::byte> blob(sizeof mine);
    std::memcpy(blob.data(), &mine, sizeof mine);
    const auto blobs = exchange.allGather(blob);
    EXPECT_TRUE(blobs);
    std::vector<uint64_t> all(static_cast<size_t>(size));
    for (size_t i = 0; blobs && i < all.size(); ++i) {
      std::memcpy(&all[i], (*blobs)[i].data(), sizeof(uint64_t));
    }
    return all;
  }
};

struct MemoryTest {
  Layout layout;
  size_t windowBytes = 4096;
  cudasim::Machine machine{};
  bool expectLive = false;                           // the body looks at what is alive itself
  std::function<void(int process)> beforeConnect{};  // in each process
  std::function<void(int rank)> injectErrors{};      // just before the rank connects
  // Stands between a rank and the exchange, to change what it hears.
  std::function<std::unique_ptr<Exchange>(Exchange& inner)> exchange{};
  std::function<size_t(int rank, size_t bytes)> windowOf{};
};
using MemoryBody = std::function<void(MemoryRank&)>;

inline uint64_t readWord(const void* from) {
  uint64_t word = 0;
  EXPECT_EQ(cudaMemcpy(&word, from, sizeof word, cudaMemcpyDefault), cudaSuccess);
  return word;
}
inline void writeWord(void* to, uint64_t word) {
  EXPECT_EQ(cudaMemcpy(to, &word, sizeof word, cudaMemcpyDefault), cudaSuccess);
}

// Until `condition`, or false at the test's limit.
inline bool eventually(const std::function<bool()>& condition, int limitMs = 5000) {
  const Deadline deadline = Deadline::afterMs(limitMs);
  while (!condition()) {
    if (deadline.passed()) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += line + "\n";
  }
  return text;
}

inline void runMemoryRank(const MemoryTest& test, ExchangeBoard& board, int rank, const Child& child,
                          const MemoryBody& body) {
  BoardExchange board_exchange(board, rank);
  const std::unique_ptr<Exchange> wrapped = test.exchange ? test.exchange(board_exchange) : nullptr;
  Exchange& exchange = wrapped ? *wrapped : board_exchange;
  const Place place = test.layout[static_cast<size_t>(rank)];
  ASSERT_EQ(cudaSetDevice(place.device), cudaSuccess);
  std::unique_ptr<Endpoint> control;
  if (board.size() > 1) {
    Result<std::unique_ptr<Endpoint>> endpoint =
        connectShm(board_exchange, kMemorySecret, {.deadline = Deadline::afterMs(kLimitMs)});
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    control = std::move(*endpoint);
  }
  DeviceMemoryOptions options{
      .device = place.device,
      .windowBytes = test.windowOf ? test.windowOf(rank, test.windowBytes) : test.windowBytes,
      .name = "test rank " + std::to_string(rank),
      .deadline = Deadline::afterMs(kLimitMs)};
  if (test.injectErrors) {
    test.injectErrors(rank);
  }
  Result<std::unique_ptr<DeviceMemory>> memory = connectDeviceMemory(exchange, std::move(control), options);
  std::unique_ptr<DeviceMemory> owner;
  if (memory) {
    owner = std::move(*memory);
  }
  MemoryRank self{rank,
                  board.size(),
                  place.device,
                  owner.get(),
                  memory ? "" : memory.error().message,
                  [&owner] { owner.reset(); },
                  board_exchange,
                  child};
  if (!test.injectErrors) {
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, place.device) << "connecting changed the current device";
  }
  body(self);
}

// Runs body on every rank and waits. All processes must succeed; `killed` is the one that the body ends.
inline std::vector<ChildResult> runMemoryRanks(const MemoryTest& test, const MemoryBody& body,
                                               int killed = -1) {
  const int ranks = static_cast<int>(test.layout.size());
  int processes = 0;
  for (const Place& place : test.layout) {
    processes = std::max(processes, place.process + 1);
  }
  ExchangeBoard board(ranks);
  std::vector<ChildResult> results =
      runProcesses(processes, std::chrono::milliseconds(2 * kLimitMs), [&](const Child& child) {
        cudasim::restartAfterFork();
        cudasim::restart(test.machine);
        if (test.beforeConnect) {
          test.beforeConnect(child.index());
        }
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks; ++rank) {
          if (test.layout[static_cast<size_t>(rank)].process == child.index()) {
            threads.emplace_back([&, rank] { runMemoryRank(test, board, rank, child, body); });
          }
        }
        for (std::thread& thread : threads) {
          thread.join();
        }
        EXPECT_TRUE(cuda::lingeringEnded(Deadline::afterMs(kLimitMs / 2)));
        cudasim::failNothing();
        if (!test.expectLive) {
          EXPECT_EQ(joined(cudasim::liveObjects()), "");
        }
        return 0;
      });
  for (size_t process = 0; process < results.size(); ++process) {
    const ChildResult& result = results[process];
    EXPECT_FALSE(result.overdue) << "process " << process << " hung; it said: " << result.message;
    if (static_cast<int>(process) != killed) {
      EXPECT_EQ(result.signal, 0) << "process " << process;
      EXPECT_EQ(result.exitCode, 0) << "process " << process << " said: " << result.message;
    }
  }
  return results;
}

// Memory of the current device, until it is freed or this object ends.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) { EXPECT_EQ(cudaMalloc(&data_, bytes), cudaSuccess); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { free(); }
  void free() {
    if (data_ != nullptr) {
      EXPECT_EQ(cudaFree(std::exchange(data_, nullptr)), cudaSuccess);
    }
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

}  // namespace peal::test

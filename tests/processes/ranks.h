// Runs a test's body as N ranks of one communicator: as processes, or as threads of this process.
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "peal/peal.h"
#include "tests/support/limits.h"
#include "tests/support/processes.h"

namespace peal::test {

// Fails the test with peal's sentence.
#define PEAL_EXPECT_OK(call)                                                                           \
  do {                                                                                                 \
    const pealResult_t pealResultOfCall = (call);                                                      \
    EXPECT_EQ(pealResultOfCall, pealSuccess)                                                           \
        << #call << ": " << pealGetErrorString(pealResultOfCall) << ": " << pealGetLastError(nullptr); \
  } while (false)
#define PEAL_ASSERT_OK(call)                                                                           \
  do {                                                                                                 \
    const pealResult_t pealResultOfCall = (call);                                                      \
    ASSERT_EQ(pealResultOfCall, pealSuccess)                                                           \
        << #call << ": " << pealGetErrorString(pealResultOfCall) << ": " << pealGetLastError(nullptr); \
  } while (false)

// A word that processes forked later share with this one.
template <class T>
class SharedValue {
 public:
  SharedValue() {
    void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::bad_alloc();
    }
    value_ = new (memory) T();
  }
  ~SharedValue() { munmap(value_, sizeof(T)); }
  SharedValue(const SharedValue&) = delete;
  SharedValue& operator=(const SharedValue&) = delete;
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

// How processes of one test find each other: rank 0 makes the id.
struct Meeting {
  std::atomic<bool> ready{false};
  pealUniqueId id{};

  pealResult_t join(pealComm_t* comm, int rank, int size, pealConfig_t* config) {
    if (rank == 0) {
      const pealResult_t made = pealGetUniqueId(&id);
      ready.store(true, std::memory_order_release);  // pairs with the load below
      if (made != pealSuccess) {
        return made;
      }
    }
    while (!ready.load(std::memory_order_acquire)) {
      std::this_thread::yield();
    }
    return pealCommInitRankConfig(comm, size, id, rank, config);
  }
};

using RankBody = std::function<void(pealComm_t comm, int rank)>;

// Each rank a process. Every body must succeed.
inline void runAsProcesses(int size, const RankBody& body, pealConfig_t config = PEAL_CONFIG_INITIALIZER,
                           std::chrono::milliseconds limit = std::chrono::seconds(100)) {
  SharedValue<Meeting> meeting;
  expectAllSucceeded(runProcesses(size, limit, [&](const Child& child) {
    pealComm_t comm = nullptr;
    pealConfig_t mine = config;
    if (meeting->join(&comm, child.index(), size, &mine) != pealSuccess) {
      child.say(pealGetLastError(nullptr));
      return 2;
    }
    body(comm, child.index());
    if (pealCommDestroy(comm) != pealSuccess) {
      child.say(pealGetLastError(nullptr));
      return 3;
    }
    return 0;
  }));
}

// Each rank a thread.
inline void runAsThreads(int size, const RankBody& body) {
  std::vector<pealComm_t> comms(static_cast<size_t>(size));
  PEAL_ASSERT_OK(pealCommInitAll(comms.data(), size, nullptr));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      body(comms[static_cast<size_t>(rank)], rank);
      PEAL_EXPECT_OK(pealCommDestroy(comms[static_cast<size_t>(rank)]));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace peal::test

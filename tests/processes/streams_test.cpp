// Host streams and events: order, overlap, errors.
#include <sched.h>

#include <atomic>

#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

// A gate that a stream's host function waits at.
struct Gate {
  std::atomic<bool> open{false};
  std::atomic<bool> reached{false};
  static void wait(void* self) {
    auto* gate = static_cast<Gate*>(self);
    gate->reached.store(true);
    while (!gate->open.load()) {
      std::this_thread::yield();
    }
  }
};

void setTo(std::atomic<int>& value) { value.store(1); }
void setOne(void* value) { setTo(*static_cast<std::atomic<int>*>(value)); }

TEST(Streams, RunInOrderAndBesideTheCaller) {
  pealStream_t stream = nullptr;
  PEAL_ASSERT_OK(pealStreamCreate(&stream));
  Gate gate;
  std::atomic<int> after{0};
  PEAL_EXPECT_OK(pealStreamLaunchHostFunc(stream, Gate::wait, &gate));
  PEAL_EXPECT_OK(pealStreamLaunchHostFunc(stream, setOne, &after));
  while (!gate.reached.load()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(pealStreamQuery(stream), pealInProgress);
  EXPECT_EQ(after.load(), 0);
  gate.open.store(true);
  PEAL_EXPECT_OK(pealStreamSynchronize(stream));
  EXPECT_EQ(after.load(), 1);
  EXPECT_EQ(pealStreamQuery(stream), pealSuccess);
  PEAL_EXPECT_OK(pealStreamDestroy(stream));
}

// A stream's worker may run where its maker may, also if that is less than the machine.
TEST(Streams, StayOnTheProcessorsOfTheirMaker) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before)) {
      continue;
    }
    cpu_set_t one, seen;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CPU_ZERO(&seen);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    pealStream_t stream = nullptr;
    PEAL_EXPECT_OK(pealStreamCreate(&stream));
    const auto look = [](void* set) {
      sched_getaffinity(0, sizeof(cpu_set_t), static_cast<cpu_set_t*>(set));
    };
    PEAL_EXPECT_OK(pealStreamLaunchHostFunc(stream, look, &seen));
    PEAL_EXPECT_OK(pealStreamSynchronize(stream));
    PEAL_EXPECT_OK(pealStreamDestroy(stream));
    EXPECT_TRUE(CPU_EQUAL(&seen, &one)) << "processor " << cpu;
  }
  sched_setaffinity(0, sizeof before, &before);
}

TEST(Streams, AnEventHoldsAnotherStreamBack) {
  pealStream_t first = nullptr;
  pealStream_t second = nullptr;
  pealEvent_t event = nullptr;
  PEAL_ASSERT_OK(pealStreamCreate(&first));
  PEAL_ASSERT_OK(pealStreamCreate(&second));
  PEAL_ASSERT_OK(pealEventCreate(&event));
  PEAL_EXPECT_OK(pealStreamWaitEvent(second, event));  // never recorded: no wait
  PEAL_EXPECT_OK(pealStreamSynchronize(second));
  Gate gate;
  std::atomic<int> after{0};
  PEAL_EXPECT_OK(pealStreamLaunchHostFunc(first, Gate::wait, &gate));
  PEAL_EXPECT_OK(pealEventRecord(event, first));
  PEAL_EXPECT_OK(pealStreamWaitEvent(second, event));
  PEAL_EXPECT_OK(pealStreamLaunchHostFunc(second, setOne, &after));
  while (!gate.reached.load()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(pealEventQuery(event), pealInProgress);
  EXPECT_EQ(after.load(), 0);
  gate.open.store(true);
  PEAL_EXPECT_OK(pealEventSynchronize(event));
  PEAL_EXPECT_OK(pealStreamSynchronize(second));
  EXPECT_EQ(after.load(), 1);
  pealEvent_t end = nullptr;
  PEAL_ASSERT_OK(pealEventCreate(&end));
  float ms = -1;
  EXPECT_EQ(pealEventElapsedTime(&ms, event, end), pealInvalidUsage);
  PEAL_EXPECT_OK(pealEventRecord(end, nullptr));
  PEAL_EXPECT_OK(pealEventElapsedTime(&ms, event, end));
  EXPECT_GE(ms, 0.0F);
  for (pealEvent_t each : {event, end}) {
    PEAL_EXPECT_OK(pealEventDestroy(each));
  }
  PEAL_EXPECT_OK(pealStreamDestroy(first));
  PEAL_EXPECT_OK(pealStreamDestroy(second));
}

TEST(Streams, CommunicationGoesOnWhileTheCallerWorks) {
  runAsThreads(2, [](pealComm_t comm, int rank) {
    pealStream_t stream = nullptr;
    PEAL_ASSERT_OK(pealStreamCreate(&stream));
    std::vector<int64_t> data(100000, rank + 1);
    PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), data.size(), pealInt64, pealSum, comm, stream));
    // Done with no further call of this thread.
    while (pealStreamQuery(stream) == pealInProgress) {
      std::this_thread::yield();
    }
    EXPECT_EQ(data.front(), 3);
    EXPECT_EQ(data.back(), 3);
    PEAL_EXPECT_OK(pealStreamDestroy(stream));
  });
}

TEST(Streams, CallsOfOneCommunicatorKeepTheirOrderAcrossStreams) {
  runAsThreads(3, [](pealComm_t comm, int rank) {
    pealStream_t streams[2];
    for (pealStream_t& stream : streams) {
      PEAL_ASSERT_OK(pealStreamCreate(&stream));
    }
    std::vector<std::vector<int32_t>> data(40);
    for (size_t i = 0; i < data.size(); ++i) {
      data[i].assign(i * 37 % 500 + 1, static_cast<int32_t>(i) + rank);
      // Two streams and the caller in turn.
      pealStream_t stream = i % 3 == 2 ? nullptr : streams[i % 3];
      PEAL_EXPECT_OK(
          pealAllReduce(data[i].data(), data[i].data(), data[i].size(), pealInt32, pealMax, comm, stream));
    }
    for (pealStream_t stream : streams) {
      PEAL_EXPECT_OK(pealStreamDestroy(stream));
    }
    for (size_t i = 0; i < data.size(); ++i) {
      EXPECT_EQ(data[i].front(), static_cast<int32_t>(i) + 2);
      EXPECT_EQ(data[i].back(), static_cast<int32_t>(i) + 2);
    }
  });
}

TEST(Streams, AnErrorIsHandedOutOnce) {
  runAsThreads(2, [](pealComm_t comm, int rank) {
    pealStream_t stream = nullptr;
    PEAL_ASSERT_OK(pealStreamCreate(&stream));
    int32_t value[4]{};
    PEAL_EXPECT_OK(pealAllReduce(value, value, rank == 0 ? 3 : 4, pealInt32, pealSum, comm, stream));
    EXPECT_NE(pealStreamSynchronize(stream), pealSuccess);
    EXPECT_NE(std::string(pealGetLastError(nullptr)).find("count"), std::string::npos)
        << pealGetLastError(nullptr);
    PEAL_EXPECT_OK(pealStreamSynchronize(stream));
    PEAL_EXPECT_OK(pealStreamDestroy(stream));
  });
}

}  // namespace
}  // namespace peal::test

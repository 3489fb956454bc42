// The simulated runtime: capture, graphs, user objects, and the error codes of what a capture forbids.
#include <array>
#include <atomic>
#include <thread>

#include "lib/executor/cuda/device.h"
#include "tests/cudasim/runtime_fixture.h"

namespace peal::cudasim {
namespace {

PEAL_KERNEL void addKernel(uint64_t* at, uint64_t value) {
  if (cuda::threadIndex() == 0) {
    cuda::storeGlobal(at, cuda::loadGlobal(at) + value);
  }
}
PEAL_KERNEL void meetAgainKernel(uint64_t* arrived, uint64_t ranks) {
  if (cuda::threadIndex() == 0) {
    const uint64_t mine = cuda::fetchAdd(arrived, 1);
    while (cuda::loadAcquire(arrived) < (mine / ranks + 1) * ranks) {
    }
  }
}

cudaError_t launchAdd(uint64_t* at, uint64_t value, cudaStream_t stream) {
  void* args[] = {&at, &value};
  return cudaLaunchKernel(addKernel, 1, 32, args, 0, stream);
}
cudaError_t launchMeetAgain(uint64_t* arrived, uint64_t ranks, cudaStream_t stream) {
  void* args[] = {&arrived, &ranks};
  return cudaLaunchKernel(meetAgainKernel, 1, 32, args, 0, stream);
}

class RuntimeGraphs : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    stream_ = makeStream();
    other_ = makeStream();
    event_ = makeEvent();
    word_ = allocate<uint64_t>(2);
    write<uint64_t>(word_, 0);
    write<uint64_t>(word_ + 1, 0);
  }
  void TearDown() override {
    EXPECT_CUDA(cudaFree(word_));
    EXPECT_CUDA(cudaEventDestroy(event_));
    EXPECT_CUDA(cudaStreamDestroy(stream_));
    EXPECT_CUDA(cudaStreamDestroy(other_));
    RuntimeTest::TearDown();
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    EXPECT_CUDA(cudaStreamBeginCapture(stream_, mode));
  }
  // Ends the capture; the graph is the caller's.
  cudaGraph_t end(cudaError_t expected = cudaSuccess) {
    auto graph = reinterpret_cast<cudaGraph_t>(1);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), expected);
    EXPECT_EQ(graph != nullptr, expected == cudaSuccess);
    return graph;
  }
  cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t exec = nullptr;
    EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    EXPECT_CUDA(cudaGraphDestroy(graph));
    return exec;
  }
  void fork(cudaStream_t from, cudaStream_t to) {
    EXPECT_CUDA(cudaEventRecord(event_, from));
    EXPECT_CUDA(cudaStreamWaitEvent(to, event_, 0));
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  uint64_t* word_ = nullptr;
};

TEST_F(RuntimeGraphs, ReplayWhatWasCaptured) {
  begin();
  EXPECT_CUDA(launchAdd(word_, 3, stream_));
  EXPECT_CUDA(cudaMemcpyAsync(word_ + 1, word_, 8, cudaMemcpyDeviceToDevice, stream_));
  const cudaGraph_t graph = end();
  EXPECT_EQ(read(word_), 0u);  // nothing has run
  size_t nodes = 0;
  EXPECT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 2u);
  std::array<cudaGraphNode_t, 2> handles{};
  EXPECT_CUDA(cudaGraphGetNodes(graph, handles.data(), &nodes));
  cudaGraphNodeType type{};
  EXPECT_CUDA(cudaGraphNodeGetType(handles[0], &type));
  EXPECT_EQ(type, cudaGraphNodeTypeKernel);
  const cudaGraphExec_t exec = instantiate(graph);
  for (int i = 0; i < 10; i++) {
    EXPECT_CUDA(cudaGraphLaunch(exec, i % 2 == 0 ? stream_ : other_));  // follow each other all the same
  }
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(read(word_), 30u);
  EXPECT_EQ(read(word_ + 1), 30u);
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
  EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaErrorInvalidValue);
}

TEST_F(RuntimeGraphs, BranchesRunAtOnce) {
  begin();
  fork(stream_, other_);
  EXPECT_CUDA(launchMeetAgain(word_, 2, stream_));
  EXPECT_CUDA(launchMeetAgain(word_, 2, other_));
  fork(other_, stream_);
  EXPECT_CUDA(launchAdd(word_ + 1, 1, stream_));
  const cudaGraphExec_t exec = instantiate(end());
  for (int i = 0; i < 5; i++) {
    EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
  }
  EXPECT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(read(word_), 10u);
  EXPECT_EQ(read(word_ + 1), 5u);
  {
    const Hold hold;
    EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
  }
  EXPECT_EQ(read(word_ + 1), 6u);
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
}

TEST_F(RuntimeGraphs, OneInsideAnother) {
  begin();
  EXPECT_CUDA(launchAdd(word_, 1, stream_));
  const cudaGraphExec_t inner = instantiate(end());
  begin();
  EXPECT_CUDA(cudaGraphLaunch(inner, stream_));
  EXPECT_CUDA(cudaGraphLaunch(inner, stream_));
  const cudaGraphExec_t outer = instantiate(end());
  EXPECT_CUDA(cudaGraphExecDestroy(inner));
  EXPECT_CUDA(cudaGraphLaunch(outer, stream_));
  EXPECT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(read(word_), 2u);
  EXPECT_CUDA(cudaGraphExecDestroy(outer));
}

TEST_F(RuntimeGraphs, ExternalEventsAreNodes) {
  begin();
  EXPECT_CUDA(launchAdd(word_, 1, stream_));
  EXPECT_CUDA(cudaEventRecordWithFlags(event_, stream_, cudaEventRecordExternal));
  const cudaGraphExec_t exec = instantiate(end());
  EXPECT_CUDA(cudaEventQuery(event_));  // nothing was recorded yet
  Gate gate;
  gate.close(stream_);
  EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  EXPECT_CUDA(cudaStreamWaitEvent(other_, event_, 0));
  gate.open();
  EXPECT_CUDA(cudaStreamSynchronize(other_));
  EXPECT_EQ(read(word_), 1u);
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
}

TEST_F(RuntimeGraphs, CaptureInfoNamesGraphAndDependencies) {
  cudaStreamCaptureStatus status{};
  EXPECT_CUDA(cudaStreamIsCapturing(stream_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  begin();
  EXPECT_CUDA(launchAdd(word_, 1, stream_));
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* dependencies = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  EXPECT_CUDA(cudaStreamGetCaptureInfo(stream_, &status, &id, &graph, &dependencies, &edges, &count));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_NE(id, 0u);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(edges[0].type, 0);
  cudaGraphNode_t node = dependencies[0];
  cudaGraphNodeType type{};
  EXPECT_CUDA(cudaGraphNodeGetType(node, &type));
  EXPECT_EQ(type, cudaGraphNodeTypeKernel);
  // The second kernel depends on nothing then; it counts as joined by the first's being a dependency again.
  EXPECT_CUDA(
      cudaStreamUpdateCaptureDependencies(stream_, nullptr, nullptr, 0, cudaStreamSetCaptureDependencies));
  EXPECT_CUDA(launchAdd(word_ + 1, 1, stream_));
  EXPECT_CUDA(
      cudaStreamUpdateCaptureDependencies(stream_, &node, nullptr, 1, cudaStreamAddCaptureDependencies));
  EXPECT_CUDA(cudaStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(count, 2u);
  const cudaGraph_t ended = end();
  EXPECT_EQ(ended, graph);
  EXPECT_CUDA(cudaGraphDestroy(ended));
}

// ---- misuse ----

TEST_F(RuntimeGraphs, UnsafeCallsEndACapture) {
  begin();
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 16), cudaErrorStreamCaptureUnsupported);
  cudaStreamCaptureStatus status{};
  EXPECT_CUDA(cudaStreamIsCapturing(stream_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
  EXPECT_EQ(launchAdd(word_, 1, stream_), cudaErrorStreamCaptureInvalidated);
  end(cudaErrorStreamCaptureInvalidated);
  EXPECT_CUDA(cudaStreamIsCapturing(stream_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
}

TEST_F(RuntimeGraphs, AnotherThreadsUnsafeCallsDependOnTheModes) {
  const auto query = [this](cudaStreamCaptureMode threadMode) {
    cudaError_t error = cudaErrorUnknown;
    std::thread([&] {
      EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&threadMode));
      EXPECT_EQ(threadMode, cudaStreamCaptureModeGlobal);  // a thread's first
      error = cudaEventQuery(event_);
    }).join();
    return error;
  };
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_CUDA(query(cudaStreamCaptureModeThreadLocal));
  EXPECT_CUDA(query(cudaStreamCaptureModeRelaxed));
  EXPECT_EQ(query(cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  end(cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_CUDA(query(cudaStreamCaptureModeGlobal));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorStreamCaptureUnsupported);  // this thread's own
  end(cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_CUDA(cudaEventQuery(event_));
  EXPECT_CUDA(cudaGraphDestroy(end()));
}

TEST_F(RuntimeGraphs, AThreadMayRelaxItself) {
  begin();
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  void* data = nullptr;
  EXPECT_CUDA(cudaMalloc(&data, 16));
  EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
  EXPECT_CUDA(cudaGraphDestroy(end()));
  EXPECT_CUDA(cudaFree(data));
}

TEST_F(RuntimeGraphs, WaitingEndsACapture) {
  begin();
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  end(cudaErrorStreamCaptureInvalidated);
  begin();
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorStreamCaptureUnsupported);
  end(cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  end(cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_CUDA(cudaEventRecord(event_, stream_));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
  end(cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaErrorCapturedEvent);
}

TEST_F(RuntimeGraphs, TheLegacyStreamEndsCapturesOfBlockingStreams) {
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_CUDA(launchAdd(word_, 1, nullptr));  // stream_ does not block: no harm
  EXPECT_CUDA(cudaGraphDestroy(end()));
  const cudaStream_t blocking = makeStream(cudaStreamDefault);
  EXPECT_CUDA(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
  cudaStreamCaptureStatus status{};
  EXPECT_EQ(cudaStreamIsCapturing(nullptr, &status), cudaErrorStreamCaptureImplicit);
  EXPECT_CUDA(cudaStreamIsCapturing(blocking, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(cudaMemset(word_, 0, 8), cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_CUDA(cudaStreamDestroy(blocking));
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
}

TEST_F(RuntimeGraphs, StreamsHaveToBeJoined) {
  begin();
  fork(stream_, other_);
  EXPECT_CUDA(launchAdd(word_, 1, other_));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(other_, &graph), cudaErrorStreamCaptureUnmatched);
  end(cudaErrorStreamCaptureUnjoined);
  cudaStreamCaptureStatus status{};
  EXPECT_CUDA(cudaStreamIsCapturing(other_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
}

TEST_F(RuntimeGraphs, CapturesStayApart) {
  EXPECT_CUDA(cudaEventRecord(event_, other_));  // outside of any capture
  begin();
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
  EXPECT_EQ(cudaStreamWaitEvent(stream_, event_, 0), cudaErrorStreamCaptureIsolation);
  end(cudaErrorStreamCaptureInvalidated);
  begin();
  EXPECT_CUDA(cudaStreamBeginCapture(other_, cudaStreamCaptureModeGlobal));
  EXPECT_CUDA(cudaEventRecord(event_, stream_));
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaErrorStreamCaptureMerge);
  end(cudaErrorStreamCaptureInvalidated);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(other_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamEndCapture(other_, &graph), cudaErrorIllegalState);
}

TEST_F(RuntimeGraphs, OnlyTheThreadThatBeganMayEnd) {
  const auto endElsewhere = [this] {
    cudaGraph_t graph = nullptr;
    cudaError_t error = cudaSuccess;
    std::thread([&] { error = cudaStreamEndCapture(stream_, &graph); }).join();
    if (graph != nullptr) {
      EXPECT_CUDA(cudaGraphDestroy(graph));
    }
    return error;
  };
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(endElsewhere(), cudaErrorStreamCaptureWrongThread);
  EXPECT_CUDA(cudaGraphDestroy(end()));
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_CUDA(endElsewhere());
}

TEST_F(RuntimeGraphs, ADestroyedStreamTakesItsCaptureWithIt) {
  const cudaStream_t stream = makeStream();
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_CUDA(cudaStreamDestroy(stream));
  void* data = nullptr;
  EXPECT_CUDA(cudaMalloc(&data, 16));
  EXPECT_CUDA(cudaFree(data));
}

// ---- user objects ----

void countUp(void* count) { ++*static_cast<std::atomic<int>*>(count); }

TEST_F(RuntimeGraphs, UserObjectsEndWithTheLastThatHoldsThem) {
  std::atomic<int> ended = 0;
  cudaUserObject_t object = nullptr;
  EXPECT_EQ(cudaUserObjectCreate(&object, &ended, countUp, 1, 0), cudaErrorInvalidValue);
  EXPECT_CUDA(cudaUserObjectCreate(&object, &ended, countUp, 1, cudaUserObjectNoDestructorSync));
  begin();
  EXPECT_CUDA(launchAdd(word_, 1, stream_));
  cudaStreamCaptureStatus status{};
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph));
  EXPECT_CUDA(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  const cudaGraphExec_t exec = instantiate(end());  // the graph is gone
  settle();
  EXPECT_EQ(ended, 0);
  Gate gate;
  gate.close(stream_);
  EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
  EXPECT_CUDA(cudaGraphExecDestroy(exec));  // a launch of it has not run yet
  settle();
  EXPECT_EQ(ended, 0);
  gate.open();
  EXPECT_CUDA(cudaStreamSynchronize(stream_));
  settle();
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(read(word_), 1u);
}

TEST_F(RuntimeGraphs, UserObjectsEndWithAFailedCapture) {
  std::atomic<int> ended = 0;
  cudaUserObject_t object = nullptr;
  EXPECT_CUDA(cudaUserObjectCreate(&object, &ended, countUp, 1, cudaUserObjectNoDestructorSync));
  begin();
  cudaStreamCaptureStatus status{};
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph));
  EXPECT_CUDA(cudaGraphRetainUserObject(graph, object, 2));
  EXPECT_CUDA(cudaUserObjectRelease(object, 1));
  EXPECT_CUDA(cudaGraphReleaseUserObject(graph, object, 1));
  EXPECT_EQ(cudaGraphReleaseUserObject(graph, object, 2), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  settle();
  EXPECT_EQ(ended, 0);
  end(cudaErrorStreamCaptureInvalidated);
  settle();
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace peal::cudasim

// What the tests of the simulated runtime share: a fresh machine for each, nothing alive after it, a gate
// that keeps a stream busy, and child processes.
#pragma once
#include <cuda_runtime.h>
#include <cudasim/runtime.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <string>
#include <vector>

#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess)
#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)

namespace peal::cudasim {

class RuntimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Death tests run in a child that starts afresh: this process has threads.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    restart(Machine{});
  }
  void TearDown() override {
    EXPECT_EQ(liveObjects(), std::vector<std::string>{});
    setTraps(Traps::End);
    restart(Machine{});
  }
};

// Keeps a stream from going on until it is opened.
class Gate {
 public:
  void close(cudaStream_t stream) {
    // The stream has its own part: it may pass after the gate is gone.
    auto* opened = new std::shared_future<void>(opened_);
    EXPECT_CUDA(cudaLaunchHostFunc(
        stream,
        [](void* data) {
          const std::unique_ptr<std::shared_future<void>> own(static_cast<std::shared_future<void>*>(data));
          own->wait();
        },
        opened));
  }
  void open() { promise_.set_value(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_ = promise_.get_future().share();
};

// Sets *flag when the stream gets here.
inline void markOn(cudaStream_t stream, std::atomic<int>* flag, cudaError_t expected = cudaSuccess) {
  EXPECT_EQ(cudaLaunchHostFunc(
                stream, [](void* mark) { ++*static_cast<std::atomic<int>*>(mark); }, flag),
            expected);
}

inline cudaStream_t makeStream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}

inline cudaEvent_t makeEvent(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  EXPECT_CUDA(cudaEventCreateWithFlags(&event, flags));
  return event;
}

template <class T>
T* allocate(size_t count) {
  T* data = nullptr;
  EXPECT_CUDA(cudaMalloc(&data, count * sizeof(T)));
  return data;
}

template <class T>
T read(const T* device) {
  T value{};
  EXPECT_CUDA(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

template <class T>
void write(T* device, T value) {
  EXPECT_CUDA(cudaMemcpy(device, &value, sizeof value, cudaMemcpyHostToDevice));
}

// A child process with a pipe each way. Its body's expectations decide its status.
class Child {
 public:
  explicit Child(const std::function<void(Child&)>& body) {
    int down[2];
    int up[2];
    EXPECT_EQ(pipe(down), 0);
    EXPECT_EQ(pipe(up), 0);
    process_ = fork();
    if (process_ == 0) {
      read_ = down[0];
      write_ = up[1];
      restartAfterFork();
      alarm(30);  // a child that waits for a dead parent
      body(*this);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    ::close(down[0]);
    ::close(up[1]);
    read_ = up[0];
    write_ = down[1];
  }
  ~Child() {
    ::close(read_);
    ::close(write_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  template <class T>
  void send(const T& value) {
    EXPECT_EQ(::write(write_, &value, sizeof value), static_cast<ssize_t>(sizeof value));
  }
  template <class T>
  T receive() {
    T value{};
    EXPECT_EQ(::read(read_, &value, sizeof value), static_cast<ssize_t>(sizeof value));
    return value;
  }
  // Its exit status; 128 + the signal that ended it.
  int join() {
    int status = 0;
    EXPECT_EQ(waitpid(process_, &status, 0), process_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t process_ = -1;
  int read_ = -1, write_ = -1;
};

}  // namespace peal::cudasim

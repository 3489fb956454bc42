// One GPU for the bench beside it: memory, a stream, time between events. Failures throw std::runtime_error.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <string>

#include "peal/peal.h"

namespace peal::gpubench {

void checkCuda(cudaError_t result, const char* call);
void checkPeal(pealResult_t result, const char* call, pealComm_t comm = nullptr);

// Zeroed memory of the current device.
class Memory {
 public:
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  Memory& operator=(Memory&&) = delete;
  template <class T = std::byte>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  // samples: of each time, whose median counts.
  explicit Stream(int samples);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  pealStream_t peal() const { return reinterpret_cast<pealStream_t>(stream_); }

  // Median seconds of one `work`, over `samples` times `repeats` of them, after one that is not timed.
  double time(int repeats, const std::function<void()>& work) const;
  // The same with the repeats in one CUDA graph.
  double timeGraph(int repeats, const std::function<void()>& work) const;

 private:
  double median(int repeats, const std::function<void()>& allRepeats) const;
  const int samples_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace peal::gpubench

// The engine on a GPU: the caller's CUDA stream, a stream for collectives, kernels for the passes.
#include "lib/zero/device.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lib/memory/cuda.h"
#include "lib/zero/cuda/kernels.h"

namespace peal::zero {
namespace {

using cuda::cudaIgnored;
using cuda::cudaResult;
using cuda::CurrentDevice;

static_assert(static_cast<int>(Pass::Kind::Start) == 0 && static_cast<int>(Pass::Kind::Add) == 1 &&
              static_cast<int>(Pass::Kind::Finish) == 2 &&
              static_cast<int>(Pass::Kind::Store) == 3);  // passes.cu
static_assert(sizeof(CountedSquares) == 3 * kExponents * sizeof(uint64_t));

// As for AdamW's step (lib/executor/cuda/adamw_launch.cpp): enough blocks to keep every processor busy while
// others end.
constexpr uint64_t kBlocksPerProcessor = 4;

class CudaStreamEvent final : public StreamEvent {
 public:
  explicit CudaStreamEvent(cuda::Event event) : event_(std::move(event)) {}
  cudaEvent_t get() const { return event_.get(); }

 private:
  cuda::Event event_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int device, int processors, cuda::StreamHolder stream, cuda::Event callerDone)
      : device_(device),
        processors_(static_cast<uint64_t>(processors)),
        stream_(std::move(stream)),
        callerDone_(std::move(callerDone)) {}
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice() override {
    if (counted_ != nullptr) {
      CudaDevice::free(ArenaMemory::Private, counted_);
    }
  }

  int number() const override { return device_; }
  pealStream_t stream() const override { return asPeal(stream_.get()); }
  pealStream_t caller() const override { return asPeal(caller_); }
  Result<void> setCaller(pealStream_t stream) override;
  Result<void> run(void (*task)(void*), void* argument) override {
    return on([&] {
      return cudaResult(cudaLaunchHostFunc(stream_.get(), task, argument), "queueing a host function");
    });
  }
  // Before anything runs: an allocation later may wait for the device, and with it for other ranks.
  Result<void> prepare() {
    const Result<void*> counted = allocate(ArenaMemory::Private, sizeof(CountedSquares));
    if (!counted) {
      return counted.error();
    }
    counted_ = *counted;
    return finishCaller();  // cleared in the default stream, for which the caller's need not wait
  }
  Result<void> streamAfterCaller() override;
  Result<std::unique_ptr<StreamEvent>> makeEvent() override {
    Result<cuda::Event> event = cuda::Event::make(device_);
    if (!event) {
      return event.error();
    }
    return std::unique_ptr<StreamEvent>(new CudaStreamEvent(std::move(*event)));
  }
  Result<void> record(StreamEvent& event) override {
    return on([&] {
      return cudaResult(cudaEventRecord(static_cast<CudaStreamEvent&>(event).get(), stream_.get()),
                        "recording an event in the engine's stream");
    });
  }
  Result<void> callerAfter(StreamEvent& event) override {
    return on([&] {
      return cudaResult(cudaStreamWaitEvent(caller_, static_cast<CudaStreamEvent&>(event).get(), 0),
                        "letting the caller's stream wait for the engine's");
    });
  }
  Result<void> finishCaller() override {
    return on([&] { return cudaResult(cudaStreamSynchronize(caller_), "waiting for the caller's stream"); });
  }
  void settle() noexcept override {
    cudaIgnored(cudaStreamSynchronize(stream_.get()), "waiting for the engine's stream");
  }
  void endStream() override {
    if (stream_.get() != nullptr) {
      cudaIgnored(cudaStreamSynchronize(stream_.get()), "waiting for the engine's stream");
      stream_ = cuda::StreamHolder();
    }
  }

  Result<void*> allocate(ArenaMemory memory, size_t bytes) override;
  void free(ArenaMemory, void* data) override {
    // After a failure it is still allocated. A destructor has nobody to tell, so it tries once more.
    if (pealMemFree(data) != pealSuccess) {
      (void)pealMemFree(data);
    }
  }
  Result<void> download(void* to, const void* from, size_t bytes) override {
    PEAL_TRY(copy(to, from, bytes, cudaMemcpyDeviceToHost));
    return finishCaller();
  }
  Result<void> upload(void* to, const void* from, size_t bytes) override {
    PEAL_TRY(copy(to, from, bytes, cudaMemcpyHostToDevice));
    return finishCaller();
  }
  // CUDA has copied pageable memory when the call returns.
  Result<void> send(void* to, const void* from, size_t bytes) override {
    return copy(to, from, bytes, cudaMemcpyHostToDevice);
  }

  Result<void> pass(Queue queue, const Pass& pass) override;
  Result<void> clear(void* data, size_t bytes) override;
  Result<void> move(void* to, const void* from, size_t bytes) override {
    return copy(to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  Result<void> addSquares(Elements values, size_t count, SquareSum& sum) override;
  Result<void> finishSquares(SquareSum& sum) override;
  Result<void> update(const Update& update) override;

 private:
  static pealStream_t asPeal(cudaStream_t stream) { return reinterpret_cast<pealStream_t>(stream); }
  // Calls `work` with the device current.
  template <class Work>
  Result<void> on(const Work& work) const {
    const CurrentDevice current(device_);
    PEAL_TRY(current.status());
    return work();
  }
  Result<void> copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) const;
  unsigned blocksFor(uint64_t count, unsigned threads) const {
    const uint64_t each = threads * cuda::kZeroElementsPerThread;
    return static_cast<unsigned>(
        std::clamp<uint64_t>((count + each - 1) / each, 1, processors_ * kBlocksPerProcessor));
  }

  const int device_;
  const uint64_t processors_;
  cuda::StreamHolder stream_;
  cudaStream_t caller_ = nullptr;
  cuda::Event callerDone_;   // recorded by streamAfterCaller, again and again
  void* counted_ = nullptr;  // a CountedSquares on the device
  bool hasCounted_ = false;  // since the last finishSquares
  SquareSum::Counted countedOf_ = SquareSum::Counted::Bf16;
};

Result<void> CudaDevice::setCaller(pealStream_t stream) {
  auto* const given = reinterpret_cast<cudaStream_t>(stream);
  if (given != nullptr && given != cudaStreamLegacy && given != cudaStreamPerThread) {
    int owner = -1;
    if (Result<void> asked = on(
            [&] { return cudaResult(cudaStreamGetDevice(given, &owner), "asking for a stream's device"); });
        !asked) {
      return Error{pealInvalidArgument,
                   asked.error().message + ". Is it a cudaStream_t that was not destroyed?"};
    }
    if (owner != device_) {
      return Error{pealInvalidArgument,
                   fmt::format("the stream belongs to device {}, the engine is on device {}; make the stream "
                               "while device {} is current (cudaSetDevice)",
                               owner, device_, device_)};
    }
  }
  caller_ = given;
  return {};
}

Result<void> CudaDevice::streamAfterCaller() {
  return on([&]() -> Result<void> {
    PEAL_TRY(
        cudaResult(cudaEventRecord(callerDone_.get(), caller_), "recording an event in the caller's stream"));
    return cudaResult(cudaStreamWaitEvent(stream_.get(), callerDone_.get(), 0),
                      "letting the engine's stream wait for the caller's");
  });
}

Result<void*> CudaDevice::allocate(ArenaMemory, size_t bytes) {
  void* data = nullptr;
  if (const pealResult_t code = pealMemAllocDevice(&data, bytes, device_); code != pealSuccess) {
    return Error{code, pealGetLastError(nullptr)};
  }
  if (Result<void> cleared = clear(data, bytes); !cleared) {
    free(ArenaMemory::Private, data);
    return cleared.error();
  }
  return data;
}

Result<void> CudaDevice::copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) const {
  if (bytes == 0) {
    return {};
  }
  return on([&] {
    const char* way = kind == cudaMemcpyHostToDevice   ? "to"
                      : kind == cudaMemcpyDeviceToHost ? "from"
                                                       : "inside";
    return cudaResult(cudaMemcpyAsync(to, from, bytes, kind, caller_), "copying {} bytes {} device {}", bytes,
                      way, device_);
  });
}

Result<void> CudaDevice::clear(void* data, size_t bytes) {
  if (bytes == 0) {
    return {};
  }
  return on([&] {
    return cudaResult(cudaMemsetAsync(data, 0, bytes, caller_), "clearing {} bytes of device {}", bytes,
                      device_);
  });
}

Result<void> CudaDevice::pass(Queue queue, const Pass& pass) {
  if (pass.count == 0) {
    return {};
  }
  cuda::ZeroPassArgs args{pass.values.data, pass.sums, pass.count, static_cast<int>(pass.kind),
                          pass.values.isWide() ? 1 : 0};
  void* pointers[] = {&args};
  return on([&] {
    return cudaResult(
        cudaLaunchKernel(cuda::zeroPassKernel(), dim3(blocksFor(pass.count, cuda::kZeroPassThreads)),
                         dim3(cuda::kZeroPassThreads), pointers, 0,
                         queue == Queue::Caller ? caller_ : stream_.get()),
        "launching a pass over {} elements on device {}", pass.count, device_);
  });
}

Result<void> CudaDevice::addSquares(Elements values, size_t count, SquareSum&) {
  if (count == 0) {
    return {};
  }
  hasCounted_ = true;
  countedOf_ = values.isWide() ? SquareSum::Counted::Fp32 : SquareSum::Counted::Bf16;
  const cuda::ZeroSquaresKernel kernel =
      values.isWide() ? cuda::zeroWideSquaresKernel() : cuda::zeroSquaresKernel();
  cuda::ZeroSquaresArgs args{values.data, count, static_cast<uint64_t*>(counted_)};
  void* pointers[] = {&args};
  return on([&] {
    return cudaResult(cudaLaunchKernel(kernel, dim3(blocksFor(count, cuda::kZeroSquareThreads)),
                                       dim3(cuda::kZeroSquareThreads), pointers, 0, caller_),
                      "launching the squares of {} elements on device {}", count, device_);
  });
}

Result<void> CudaDevice::finishSquares(SquareSum& sum) {
  if (!std::exchange(hasCounted_, false)) {
    return finishCaller();
  }
  CountedSquares counted{};
  PEAL_TRY(download(&counted, counted_, sizeof counted));
  sum.addCounted(counted, countedOf_);
  return clear(counted_, sizeof counted);
}

Result<void> CudaDevice::update(const Update& update) {
  if (update.count == 0) {
    return {};
  }
  using Kind = cuda::ZeroUpdateKind;
  const bool isWide = update.gradient.isWide();
  const Kind kind = update.master == nullptr ? (isWide ? Kind::WideWeights : Kind::OwnMasters)
                    : !isWide                ? Kind::Remainders
                    : update.hasRemainders   ? Kind::WideRemainders
                                             : Kind::WideGradients;
  cuda::ZeroUpdateArgs args{update.gradient.data,
                            update.master == nullptr ? update.weight.data : update.master,
                            update.moment1,
                            update.moment2,
                            update.weight.data,
                            update.count,
                            update.scalars,
                            kind,
                            update.isStochastic ? 1 : 0,
                            update.key.seed,
                            update.key.step,
                            update.key.firstIndex};
  void* pointers[] = {&args};
  return on([&] {
    return cudaResult(
        cudaLaunchKernel(cuda::zeroUpdateKernel(), dim3(blocksFor(update.count, cuda::kZeroPassThreads)),
                         dim3(cuda::kZeroPassThreads), pointers, 0, caller_),
        "launching the update of {} elements on device {}", update.count, device_);
  });
}

}  // namespace

Result<std::shared_ptr<Device>> makeCudaDevice(int device) {
  int processors = 0;
  PEAL_TRY(cudaResult(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                      "asking device {} for its processors", device));
  Result<cuda::StreamHolder> stream = cuda::StreamHolder::make(device);
  if (!stream) {
    return stream.error();
  }
  Result<cuda::Event> callerDone = cuda::Event::make(device);
  if (!callerDone) {
    return callerDone.error();
  }
  auto made = std::make_shared<CudaDevice>(device, processors, std::move(*stream), std::move(*callerDone));
  PEAL_TRY(made->prepare());
  return std::shared_ptr<Device>(std::move(made));
}

}  // namespace peal::zero

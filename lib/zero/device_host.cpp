// The engine on host memory: the caller's queue is its thread, the stream is a host stream of peal.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "lib/zero/device.h"

namespace peal::zero {
namespace {

constexpr std::align_val_t kArenaAlignment{64};

// The communicator has the sentence: Collectives looks there.
Result<void> hostResult(pealResult_t code) { return code == pealSuccess ? Result<void>() : Error{code, ""}; }

class HostStreamEvent final : public StreamEvent {
 public:
  explicit HostStreamEvent(pealEvent_t event) : event_(event) {}
  // An event of a stream that has ended cannot refuse; a destructor has nobody to tell.
  ~HostStreamEvent() override { (void)pealEventDestroy(event_); }
  HostStreamEvent(const HostStreamEvent&) = delete;
  HostStreamEvent& operator=(const HostStreamEvent&) = delete;
  pealEvent_t get() const { return event_; }

 private:
  pealEvent_t event_;
};

void runPass(const Pass& pass) {
  switch (pass.kind) {
    case Pass::Kind::Start:
      return startSums(pass.values, pass.sums, pass.count);
    case Pass::Kind::Add:
      return addToSums(pass.values, pass.sums, pass.count);
    case Pass::Kind::Finish:
      return finishSums(pass.values, pass.sums, pass.count);
    case Pass::Kind::Store:
      return storeSums(pass.sums, pass.values, pass.count);
  }
}

// The loops of a gradient's type.
template <class Gradient>
struct AdamwLoops;
template <>
struct AdamwLoops<uint16_t> {
  static constexpr auto plain = &Loops::adamw;
  static constexpr auto stochastic = &Loops::adamwStochastic;
  static constexpr auto remainder = &Loops::adamwRemainder;
  static constexpr auto weights = &Loops::adamwWeights;
};
template <>
struct AdamwLoops<float> {
  static constexpr auto plain = &Loops::adamwFp32;
  static constexpr auto stochastic = &Loops::adamwStochasticFp32;
  static constexpr auto remainder = &Loops::adamwRemainderFp32;
  static constexpr auto weights = &Loops::adamwWeightsFp32;
};

template <class Gradient>
void runUpdate(const Update& update, const Gradient* gradient) {
  using Ways = AdamwLoops<Gradient>;
  const Loops& with = loops();
  if (update.master == nullptr) {
    (with.*Ways::weights)(update.scalars,
                          {gradient, update.weight.fp32(), update.moment1, update.moment2, update.count});
    return;
  }
  if (update.hasRemainders) {
    (with.*Ways::remainder)(update.scalars, {gradient, static_cast<int16_t*>(update.master), update.moment1,
                                             update.moment2, update.weight.bf16(), update.count});
    return;
  }
  const AdamwArgsOf<Gradient> args{
      gradient,    static_cast<float*>(update.master), update.moment1, update.moment2, update.weight.bf16(),
      update.count};
  if (update.isStochastic) {
    (with.*Ways::stochastic)(update.scalars, args, update.key);
  } else {
    (with.*Ways::plain)(update.scalars, args);
  }
}

class HostDevice final : public Device {
 public:
  explicit HostDevice(pealStream_t stream) : stream_(stream) {}
  ~HostDevice() override { endHostStream(); }
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  int number() const override { return PEAL_DEVICE_HOST; }
  pealStream_t stream() const override { return stream_; }
  pealStream_t caller() const override { return nullptr; }
  Result<void> setCaller(pealStream_t stream) override {
    if (stream == nullptr) {
      return {};
    }
    return Error{pealInvalidArgument,
                 "the engine's communicator is on host memory, where its caller computes on its thread and "
                 "has no stream to name; pass NULL"};
  }
  Result<void> run(void (*task)(void*), void* argument) override {
    return hostResult(pealStreamLaunchHostFunc(stream_, task, argument));
  }
  Result<void> streamAfterCaller() override { return {}; }
  Result<std::unique_ptr<StreamEvent>> makeEvent() override {
    pealEvent_t event = nullptr;
    PEAL_TRY(hostResult(pealEventCreate(&event)));
    return std::unique_ptr<StreamEvent>(new HostStreamEvent(event));
  }
  Result<void> record(StreamEvent& event) override {
    return hostResult(pealEventRecord(static_cast<HostStreamEvent&>(event).get(), stream_));
  }
  Result<void> callerAfter(StreamEvent& event) override {
    return hostResult(pealEventSynchronize(static_cast<HostStreamEvent&>(event).get()));
  }
  Result<void> finishCaller() override { return {}; }
  void settle() noexcept override { (void)pealStreamSynchronize(stream_); }
  void endStream() override { endHostStream(); }

  Result<void*> allocate(ArenaMemory memory, size_t bytes) override {
    void* data = nullptr;
    if (memory == ArenaMemory::Shared) {
      if (const pealResult_t code = pealMemAlloc(&data, bytes); code != pealSuccess) {
        return Error{code, pealGetLastError(nullptr)};
      }
      return data;
    }
    data = ::operator new(bytes, kArenaAlignment, std::nothrow);
    if (data == nullptr) {
      return Error{
          pealSystemError,
          "that is more than this process can have; use more ranks or a higher stage (peal-plan says "
          "which)"};
    }
    std::memset(data, 0, bytes);
    return data;
  }
  void free(ArenaMemory memory, void* data) override {
    if (memory == ArenaMemory::Shared) {
      // Cannot fail for what pealMemAlloc gave; a destructor has nobody to tell.
      (void)pealMemFree(data);
    } else {
      ::operator delete(data, kArenaAlignment);
    }
  }
  Result<void> download(void* to, const void* from, size_t bytes) override { return copy(to, from, bytes); }
  Result<void> upload(void* to, const void* from, size_t bytes) override { return copy(to, from, bytes); }
  Result<void> send(void* to, const void* from, size_t bytes) override { return copy(to, from, bytes); }

  Result<void> pass(Queue queue, const Pass& pass) override {
    if (queue == Queue::Caller) {
      runPass(pass);
      return {};
    }
    auto copied = std::make_unique<Pass>(pass);
    PEAL_TRY(run(
        [](void* argument) {
          const std::unique_ptr<Pass> owned(static_cast<Pass*>(argument));
          runPass(*owned);
        },
        copied.get()));
    (void)copied.release();  // the task's now: a stream runs all that is queued
    return {};
  }
  Result<void> clear(void* data, size_t bytes) override {
    std::memset(data, 0, bytes);
    return {};
  }
  Result<void> move(void* to, const void* from, size_t bytes) override { return copy(to, from, bytes); }
  Result<void> addSquares(Elements values, size_t count, SquareSum& sum) override {
    if (values.isWide()) {
      sum.add(values.fp32(), count);
    } else {
      sum.add(values.bf16(), count);
    }
    return {};
  }
  Result<void> finishSquares(SquareSum&) override { return {}; }
  Result<void> update(const Update& update) override {
    if (update.gradient.isWide()) {
      runUpdate(update, update.gradient.fp32());
    } else {
      runUpdate(update, update.gradient.bf16());
    }
    return {};
  }

 private:
  static Result<void> copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
    return {};
  }
  void endHostStream() { (void)pealStreamDestroy(std::exchange(stream_, nullptr)); }

  pealStream_t stream_;
};

}  // namespace

Result<std::shared_ptr<Device>> makeHostDevice() {
  pealStream_t stream = nullptr;
  if (const pealResult_t code = pealStreamCreate(&stream); code != pealSuccess) {
    return Error{code, pealGetLastError(nullptr)};
  }
  return std::shared_ptr<Device>(new HostDevice(stream));
}

}  // namespace peal::zero

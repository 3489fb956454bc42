#include "lib/zero/spans.h"

namespace peal::zero {
namespace {

int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

void SpanLog::set(pealZeroTrace_t callback, void* user) {
  running_.clear();
  callback_ = callback;
  user_ = user;
}

SpanLog::Running* SpanLog::issued(Purpose purpose, uint64_t bytes, const StreamClock& clock) {
  Running& running = running_.emplace_back();
  running.span = {pealZeroSpanCollective, purpose.counter, purpose.index, bytes, 0, 0};
  running.clock = &clock;
  return &running;
}

void SpanLog::end(void* argument) {
  auto& running = *static_cast<Running*>(argument);
  running.span.beginNs = nanoseconds(running.clock->began);
  running.span.endNs = nanoseconds(running.clock->ended);
  running.ended.store(true, std::memory_order_release);
}

void SpanLog::waited(Purpose purpose, Clock::time_point began, Clock::time_point ended) {
  if (callback_ == nullptr) {
    return;
  }
  deliver();
  const pealZeroSpan_t span{pealZeroSpanWait,   purpose.counter,   purpose.index, 0,
                            nanoseconds(began), nanoseconds(ended)};
  callback_(user_, &span);
}

void SpanLog::deliver() {
  while (!running_.empty() && running_.front().ended.load(std::memory_order_acquire)) {
    callback_(user_, &running_.front().span);
    running_.pop_front();
  }
}

}  // namespace peal::zero

#include "lib/executor/host/stream.h"

namespace peal {

uint64_t HostEvent::record() {
  const std::lock_guard lock(mutex_);
  return ++recorded_;
}

void HostEvent::complete(uint64_t generation) {
  {
    const std::lock_guard lock(mutex_);
    if (generation > completed_) {
      completed_ = generation;
      completedAt_ = Clock::now();
    }
  }
  changed_.notify_all();
}

uint64_t HostEvent::recorded() {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

void HostEvent::waitFor(uint64_t generation) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= generation; });
}

bool HostEvent::isComplete() {
  const std::lock_guard lock(mutex_);
  return completed_ >= recorded_;
}

std::optional<Clock::time_point> HostEvent::completedAt() {
  const std::lock_guard lock(mutex_);
  return recorded_ > 0 && completed_ >= recorded_ ? std::optional(completedAt_) : std::nullopt;
}

HostStream::HostStream() : worker_([this] { work(); }) {}

HostStream::~HostStream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void HostStream::enqueue(Task task) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
    ++queued_;
  }
  changed_.notify_all();
}

Result<void> HostStream::synchronize() {
  std::unique_lock lock(mutex_);
  const uint64_t target = queued_;
  changed_.wait(lock, [&] { return finished_ >= target; });
  if (error_) {
    Error error = std::move(*error_);
    error_.reset();
    return error;
  }
  return {};
}

bool HostStream::idle() {
  const std::lock_guard lock(mutex_);
  return finished_ == queued_;
}

void HostStream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    Task task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    Result<void> result = task();
    task = nullptr;  // what it holds is freed before anybody is told that it is done
    lock.lock();
    ++finished_;
    if (!result && !error_) {
      error_ = result.error();
    }
    changed_.notify_all();
  }
}

}  // namespace peal

#include "transports/cuda_ipc/mapper.h"

#include <system_error>

namespace peal::cuda {

Mapper::~Mapper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Mapper::take(int peerRank, const Note& note) {
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      // Nothing is mapped then, so a Retire finds nothing either.
      Note refusal;
      refusal.kind = note.kind == NoteKind::Announce ? NoteKind::Mapped : NoteKind::Closed;
      refusal.id = note.id;
      refusal.reason.set(std::string("no thread could be started: ") + error.what());
      answer_(peerRank, refusal);
      return;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({peerRank, note});
  }
  work_.notify_one();
}

void Mapper::run() {
  const RelaxedCapture relaxed;  // a capture that runs elsewhere is none of this thread's business
  for (;;) {
    std::unique_lock lock(mutex_);
    work_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (stop_) {
      return;
    }
    const Job job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    if (job.note.kind == NoteKind::Announce) {
      answer_(job.peerRank, map(job));
    } else {
      mapped_.erase({job.peerRank, job.note.id});
      Note closed;
      closed.kind = NoteKind::Closed;
      closed.id = job.note.id;
      answer_(job.peerRank, closed);
    }
  }
}

Note Mapper::map(const Job& job) {
  Note answer;
  answer.kind = NoteKind::Mapped;
  answer.id = job.note.id;
  Result<IpcMapping> mapping = IpcMapping::open(device_, job.note.handle);
  if (!mapping) {
    answer.reason.set(mapping.error().message);
    return answer;
  }
  // The peer's figures are checked against what was really mapped: kernels read there.
  const Result<Allocation> allocation = allocationOf(mapping->base());
  if (!allocation) {
    answer.reason.set(allocation.error().message);
  } else if (job.note.offset > allocation->bytes || job.note.bytes > allocation->bytes - job.note.offset) {
    answer.reason.set(fmt::format("bytes {} to {} lie outside of the mapped allocation, which has {} bytes",
                                  job.note.offset, job.note.offset + job.note.bytes, allocation->bytes));
  } else {
    answer.address = reinterpret_cast<uint64_t>(mapping->base()) + job.note.offset;
    mapped_[{job.peerRank, job.note.id}] = std::move(*mapping);
  }
  return answer;
}

}  // namespace peal::cuda

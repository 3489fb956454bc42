#include "transports/cuda_ipc/mapper.h"

#include <system_error>

#include "lib/base/log.h"

namespace peal::cuda {
namespace {

// Kernels leave at their next wait, so in milliseconds, unless others keep the device.
constexpr int64_t kLetGoMs = 10000;

}  // namespace

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
      // Nothing is mapped then, so there is nothing to close either.
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
      close(job);
    }
  }
}

// Closing does not wait for kernels that read. While some do, it stays open and unanswered, and the peer says
// that its buffer must not be freed; it is closed when this rank leaves.
void Mapper::close(const Job& job) {
  if (job.note.kind == NoteKind::Withdraw) {
    if (const Result<void> gone = readers_->letGo(job.peerRank, Deadline::afterMs(kLetGoMs)); !gone) {
      log(LogLevel::Warn, fmt::format("{}: a buffer that rank {} takes back stays mapped: {}", options_.name,
                                      job.peerRank, gone.error().message));
      return;
    }
  }
  mapped_.erase({job.peerRank, job.note.id});
  Note closed;
  closed.kind = NoteKind::Closed;
  closed.id = job.note.id;
  answer_(job.peerRank, closed);
}

Note Mapper::map(const Job& job) {
  Note answer;
  answer.kind = NoteKind::Mapped;
  answer.id = job.note.id;
  Mapping mapping;
  const Result<uint64_t> address =
      job.note.pieces == 0 ? mapAllocation(job, mapping) : mapPieces(job, mapping);
  if (address) {
    answer.address = *address;
    mapped_[{job.peerRank, job.note.id}] = std::move(mapping);
  } else {
    answer.reason.set(address.error().message);
  }
  return answer;
}

namespace {

// The peer's figures are checked against what was really mapped: kernels read there.
Result<uint64_t> addressIn(const std::byte* base, size_t mappedBytes, const Note& note) {
  if (note.offset > mappedBytes || note.bytes > mappedBytes - note.offset) {
    return Error{pealRemoteError,
                 fmt::format("bytes {} to {} lie outside of the mapped allocation, which has {} bytes",
                             note.offset, note.offset + note.bytes, mappedBytes)};
  }
  return reinterpret_cast<uint64_t>(base) + note.offset;
}

}  // namespace

Result<uint64_t> Mapper::mapAllocation(const Job& job, Mapping& mapping) const {
  Result<IpcMapping> opened = IpcMapping::open(options_.device, job.note.handle);
  if (!opened) {
    return opened.error();
  }
  mapping.ipc = std::move(*opened);
  const Result<Allocation> allocation = allocationOf(mapping.ipc.base());
  if (!allocation) {
    return allocation.error();
  }
  return addressIn(mapping.ipc.base(), allocation->bytes, job.note);
}

Result<uint64_t> Mapper::mapPieces(const Job& job, Mapping& mapping) const {
  const Note& note = job.note;
  if (note.pieces < 0) {
    return Error{pealSystemError, note.reason.text()};
  }
  if (post_ == nullptr || static_cast<size_t>(note.pieces) > note.pieceBytes.size()) {
    return Error{pealSystemError, "this rank cannot receive handles of memory"};
  }
  const CurrentDevice current(options_.device);
  PEAL_TRY(current.status());
  const Result<std::vector<OwnedFd>> files = post_->receive(job.peerRank, note.id);
  if (!files) {
    return files.error();
  }
  if (files->size() != static_cast<size_t>(note.pieces)) {
    return Error{pealRemoteError,
                 fmt::format("{} handles of memory came for {} pieces", files->size(), note.pieces)};
  }
  const Result<Pieces> pieces =
      Pieces::import(*files, {note.pieceBytes.begin(), note.pieceBytes.begin() + note.pieces});
  if (!pieces) {
    return pieces.error();
  }
  Result<PieceMapping> mapped = PieceMapping::make(*pieces, {options_.device});
  if (!mapped) {
    return mapped.error();
  }
  mapping.pieces = std::move(*mapped);
  return addressIn(mapping.pieces.base(), pieces->bytes(), note);
}

}  // namespace peal::cuda

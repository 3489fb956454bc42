#include "transports/shm/segment.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "transports/shm/bell.h"

namespace peal::shm {
namespace {

struct LocalSegments {
  std::mutex mutex;  // guards the map
  std::map<Token, std::weak_ptr<Segment>> byToken;
};

// Never destroyed: a communicator may end in a destructor that runs after ours would.
LocalSegments& localSegments() {
  static LocalSegments* const instance = new LocalSegments;
  return *instance;
}

}  // namespace

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) {
    munmap(base_, bytes_);
  }
}

Result<Mapping> Mapping::make(int fd, size_t offset, size_t bytes, int protection, const char* what) {
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* base = mmap(nullptr, bytes, protection, flags, fd, static_cast<off_t>(offset));
  if (base == MAP_FAILED) {
    return systemError(fmt::format("mmap of {} bytes ({})", bytes, what), errno);
  }
  return Mapping(static_cast<std::byte*>(base), bytes);
}

Result<OwnSegment> createSegment(const Layout& layout, int rank) {
  Result<OwnedFd> file = createMemoryFile("peal-segment", layout.totalBytes());
  if (!file) {
    return file.error();
  }
  OwnSegment own{std::make_shared<Segment>(), std::move(*file)};
  constexpr int kReadWrite = PROT_READ | PROT_WRITE;
  const int fd = own.file.get();
  Result<Mapping> control = Mapping::make(fd, 0, layout.controlBytes(), kReadWrite, "own control pages");
  if (!control) {
    return control.error();
  }
  Result<Mapping> staging =
      Mapping::make(fd, layout.controlBytes(), layout.stagingBytes(), kReadWrite, "own staging pages");
  if (!staging) {
    return staging.error();
  }
  Result<Mapping> local = Mapping::make(-1, 0, layout.controlBytes(), kReadWrite, "private control pages");
  if (!local) {
    return local.error();
  }
  own.segment->control = std::move(*control);
  own.segment->staging = std::move(*staging);
  own.segment->privateControl = std::move(*local);
  own.segment->shared().header() = Header{kMagic,        layout.slotBytes(), rank,
                                          layout.size(), layout.slots(),     registeredForFences() ? 1U : 0U};
  return own;
}

Result<std::shared_ptr<Segment>> mapSegment(const Layout& layout, int peerRank, int fd) {
  PEAL_TRY(checkMemoryFile(fd, layout.totalBytes()));
  Result<Mapping> control =
      Mapping::make(fd, 0, layout.controlBytes(), PROT_READ | PROT_WRITE, "a peer's control pages");
  if (!control) {
    return control.error();
  }
  Result<Mapping> staging =
      Mapping::make(fd, layout.controlBytes(), layout.stagingBytes(), PROT_READ, "a peer's staging pages");
  if (!staging) {
    return staging.error();
  }
  auto segment = std::make_shared<Segment>();
  segment->control = std::move(*control);
  segment->staging = std::move(*staging);
  const Header& header = segment->shared().header();
  if (header.magic != kMagic || header.rank != peerRank || header.size != layout.size() ||
      header.slots != layout.slots() || header.slotBytes != layout.slotBytes()) {
    return Error{pealRemoteError, fmt::format("the segment of rank {} has a wrong header (magic {:#x}, rank "
                                              "{}, {} ranks, {} slots of {} bytes)",
                                              peerRank, header.magic, header.rank, header.size, header.slots,
                                              header.slotBytes)};
  }
  return segment;
}

void publishLocally(const Token& token, const std::shared_ptr<Segment>& segment) {
  LocalSegments& local = localSegments();
  const std::lock_guard lock(local.mutex);
  std::erase_if(local.byToken, [](const auto& entry) { return entry.second.expired(); });
  local.byToken[token] = segment;
}

std::shared_ptr<Segment> findLocally(const Token& token) {
  LocalSegments& local = localSegments();
  const std::lock_guard lock(local.mutex);
  const auto found = local.byToken.find(token);
  return found == local.byToken.end() ? nullptr : found->second.lock();
}

}  // namespace peal::shm

#include "lib/memory/descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace peal {
namespace {

// Linux 6.3: never executable. Older kernels refuse the flag, and the file is made without it.
constexpr unsigned kNoExecSeal = 0x0008U;

}  // namespace

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int OwnedFd::release() { return std::exchange(fd_, -1); }

void OwnedFd::reset() {
  if (fd_ >= 0) {
    close(fd_);
    fd_ = -1;
  }
}

Error systemError(const std::string& what, int errorNumber) {
  std::string text = fmt::format("{}: {} (errno {})", what, std::strerror(errorNumber), errorNumber);
  if (errorNumber == EMFILE) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    text += fmt::format(
        ". This process may have {} open files. Raise the limit with `ulimit -n` (up to {}), or close some.",
        limit.rlim_cur, limit.rlim_max);
  } else if (errorNumber == ENFILE) {
    text += ". The system's table of open files is full: raise the sysctl fs.file-max.";
  } else if (errorNumber == ENOMEM) {
    text += ". Memory, or the number of mappings (sysctl vm.max_map_count), ran out.";
  }
  return Error{pealSystemError, std::move(text)};
}

Result<OwnedFd> createMemoryFile(const char* name, size_t bytes) {
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  if (fd < 0 && errno == EINVAL) {
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  if (fd < 0) {
    return systemError("memfd_create", errno);
  }
  OwnedFd file(fd);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return systemError(fmt::format("ftruncate of a memory file to {} bytes", bytes), errno);
  }
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return systemError("fcntl(F_ADD_SEALS) on a memory file", errno);
  }
  return file;
}

Result<void> checkMemoryFile(int fd, size_t bytes) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    return systemError("fstat of a peer's memory file", errno);
  }
  if (status.st_size < 0 || static_cast<size_t>(status.st_size) < bytes) {
    return Error{pealRemoteError, fmt::format("a peer's memory file has {} bytes, {} were announced",
                                              static_cast<int64_t>(status.st_size), bytes)};
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error{pealRemoteError, "a peer's memory file is not sealed against shrinking"};
  }
  return {};
}

size_t wholePages(size_t bytes) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace peal

#include "lib/zero/checkpoint/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace peal::zero::checkpoint {

Error fileError(const char* what, const std::string& path, int errorNumber) {
  return {pealSystemError,
          fmt::format("{} {}: {} (errno {})", what, path, std::strerror(errorNumber), errorNumber)};
}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    written_ = other.written_;
    path_ = std::move(other.path_);
  }
  return *this;
}

void File::close() {
  if (fd_ >= 0) {
    // What matters was synced; an error here has nobody to tell.
    (void)::close(fd_);
    fd_ = -1;
  }
}

Result<File> File::openWith(const std::string& path, int flags, const char* what) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    return fileError(what, path, errno);
  }
  return File(fd, path);
}

Result<File> File::create(const std::string& path) {
  return openWith(path, O_WRONLY | O_CREAT | O_EXCL, "cannot create");
}

Result<File> File::open(const std::string& path) { return openWith(path, O_RDONLY, "cannot open"); }

Result<File> File::openDirectory(const std::string& path) {
  return openWith(path, O_RDONLY | O_DIRECTORY, "cannot open the directory");
}

Result<void> File::write(const void* data, uint64_t sizeBytes) {
  const char* from = static_cast<const char*>(data);
  while (sizeBytes > 0) {
    const ssize_t done = ::write(fd_, from, sizeBytes);
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      Error error = fileError("cannot write", path_, done == 0 ? ENOSPC : errno);
      error.message += fmt::format(" at offset {}", written_);
      return error;
    }
    from += done;
    written_ += static_cast<uint64_t>(done);
    sizeBytes -= static_cast<uint64_t>(done);
  }
  return {};
}

Result<void> File::readAt(uint64_t offset, void* to, uint64_t sizeBytes) const {
  char* into = static_cast<char*>(to);
  while (sizeBytes > 0) {
    const ssize_t done = ::pread(fd_, into, sizeBytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done < 0) {
      Error error = fileError("cannot read", path_, errno);
      error.message += fmt::format(" at offset {}", offset);
      return error;
    }
    if (done == 0) {
      return Error{pealInvalidArgument,
                   fmt::format("{} ends at offset {}; {} more bytes belong there: it is truncated", path_,
                               offset, sizeBytes)};
    }
    into += done;
    offset += static_cast<uint64_t>(done);
    sizeBytes -= static_cast<uint64_t>(done);
  }
  return {};
}

Result<uint64_t> File::size() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) {
    return fileError("cannot look at", path_, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return Error{pealInvalidArgument, fmt::format("{} is not a file", path_)};
  }
  return static_cast<uint64_t>(status.st_size);
}

Result<void> File::sync() const {
  if (::fsync(fd_) != 0) {
    return fileError("cannot bring to the disk", path_, errno);
  }
  return {};
}

Result<void> syncDirectory(const std::string& path) {
  const Result<File> directory = File::openDirectory(path);
  if (!directory) {
    return directory.error();
  }
  return directory->sync();
}

Result<std::string> readWhole(const std::string& path, uint64_t mostBytes) {
  const Result<File> file = File::open(path);
  if (!file) {
    return file.error();
  }
  const Result<uint64_t> size = file->size();
  if (!size) {
    return size.error();
  }
  if (*size > mostBytes) {
    return Error{pealInvalidArgument,
                 fmt::format("{} has {} bytes, more than the {} that it may have", path, *size, mostBytes)};
  }
  std::string text(*size, '\0');
  PEAL_TRY(file->readAt(0, text.data(), text.size()));
  return text;
}

}  // namespace peal::zero::checkpoint

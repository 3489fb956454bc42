// Files and directories, with errors that name the path, the offset and the system's reason. Called by the
// writer, the reader and the staging of a checkpoint. Knows no format.
#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "lib/base/result.h"

namespace peal::zero::checkpoint {

// An open file, closed when it goes.
class File {
 public:
  File() = default;
  ~File() { close(); }
  File(File&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), written_(other.written_), path_(std::move(other.path_)) {}
  File& operator=(File&& other) noexcept;

  static Result<File> create(const std::string& path);  // must not exist
  static Result<File> open(const std::string& path);    // for reading
  static Result<File> openDirectory(const std::string& path);

  // At the end of what was written so far.
  Result<void> write(const void* data, uint64_t sizeBytes);
  // All of it: a file that ends before is an error that says where.
  Result<void> readAt(uint64_t offset, void* to, uint64_t sizeBytes) const;
  Result<uint64_t> size() const;
  // Everything written is on the disk afterwards, or an error. Also of a directory.
  Result<void> sync() const;
  const std::string& path() const { return path_; }
  int descriptor() const { return fd_; }

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  static Result<File> openWith(const std::string& path, int flags, const char* what);
  void close();

  int fd_ = -1;
  uint64_t written_ = 0;
  std::string path_;
};

// "what PATH: the system's reason". code pealSystemError.
Error fileError(const char* what, const std::string& path, int errorNumber);

Result<void> syncDirectory(const std::string& path);

// The whole of a small file; one of more than mostBytes is refused.
Result<std::string> readWhole(const std::string& path, uint64_t mostBytes);

}  // namespace peal::zero::checkpoint

// File descriptors: one that closes itself, sealed memory files, and the sentence for a failed system call.
//
// Owns nothing but what each object holds. Used by the registry and by transports that share memory.
#pragma once
#include <cstddef>
#include <string>

#include "lib/base/result.h"

namespace peal {

// A file descriptor that is closed with its owner. -1: none.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  ~OwnedFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

// "what: reason (errno n)"; with the limit and the remedy where descriptors or memory ran out.
Error systemError(const std::string& what, int errorNumber);

// A memory file of exactly `bytes`, zero-filled, that nobody can shrink or grow afterwards: whoever maps it
// cannot be killed by a truncation. Closed on exec. `name` appears in /proc only.
Result<OwnedFd> createMemoryFile(const char* name, size_t bytes);

// Checks a memory file that came from elsewhere: it has at least `bytes`, and it cannot shrink.
Result<void> checkMemoryFile(int fd, size_t bytes);

// `bytes` rounded up to whole pages.
size_t wholePages(size_t bytes);

}  // namespace peal

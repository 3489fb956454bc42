#include "lib/zero/checkpoint/staging.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/zero/checkpoint/manifest.h"

namespace peal::zero::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = ".saving-";
constexpr size_t kIdDigits = 16;
constexpr std::chrono::seconds kLockLimit{10};  // others hold it alone only while they remove leftovers
constexpr std::chrono::milliseconds kLockPause{5};

std::string parentOf(const std::string& target) {
  const std::string parent = fs::path(target).parent_path().string();
  return parent.empty() ? "." : parent;
}

// A failure is told in the log only: the next save tries again.
void removeTree(const std::string& path) {
  std::error_code fault;
  fs::remove_all(path, fault);
  if (fault) {
    log(LogLevel::Warn,
        fmt::format("cannot remove {}: {}; the next save tries again", path, fault.message()));
  }
}

// A leftover may be the older checkpoint that a save exchanged with its own, and did not get the exchange
// onto the disk: nothing is removed before that is there.
Result<void> removeLeftovers(const File& parent, const std::string& prefix) {
  std::error_code fault;
  std::vector<std::string> leftovers;
  for (fs::directory_iterator entry(parent.path(), fault), end; !fault && entry != end;
       entry.increment(fault)) {
    const std::string name = entry->path().filename().string();
    if (isStagingName(name) && name.starts_with(prefix)) {
      leftovers.push_back(entry->path().string());
    }
  }
  if (!leftovers.empty()) {
    PEAL_TRY(parent.sync());
  }
  for (const std::string& leftover : leftovers) {
    removeTree(leftover);
  }
  return {};
}

// A target that exists must be a checkpoint, or empty: nothing else is replaced.
Result<void> checkReplaceable(const std::string& target) {
  struct stat status {};
  if (lstat(target.c_str(), &status) != 0) {
    return errno == ENOENT ? Result<void>() : fileError("cannot look at", target, errno);
  }
  std::error_code fault;
  const bool isDirectory = S_ISDIR(status.st_mode);
  if (!isDirectory || (!fs::exists(target + "/" + kManifestName, fault) && !fs::is_empty(target, fault))) {
    return Error{pealInvalidArgument,
                 fmt::format("{} exists and is {}; a save replaces checkpoints only. Save under another name",
                             target, isDirectory ? "a directory without a manifest" : "not a directory")};
  }
  return {};
}

// Takes the lock shared, after removing leftovers if nobody else saves here.
Result<void> lockAndClean(const File& parent, const std::string& name) {
  if (flock(parent.descriptor(), LOCK_EX | LOCK_NB) == 0) {
    PEAL_TRY(removeLeftovers(parent, ""));
  } else if (errno != EWOULDBLOCK) {
    // A file system without locks of directories: only this target's leftovers are surely dead.
    return removeLeftovers(parent, name + kMark);
  }
  const Clock::time_point end = Clock::now() + kLockLimit;
  while (flock(parent.descriptor(), LOCK_SH | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return fileError("cannot lock the directory", parent.path(), errno);
    }
    if (Clock::now() > end) {
      return Error{pealTimeout, fmt::format("another process holds the lock of {} for more than {} s",
                                            parent.path(), kLockLimit.count())};
    }
    std::this_thread::sleep_for(kLockPause);
  }
  return {};
}

}  // namespace

std::string withoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

std::string stagingPath(const std::string& target, uint64_t id) {
  return fmt::format("{}{}{:016x}", target, kMark, id);
}

bool isStagingName(const std::string& name) {
  const size_t mark = name.rfind(kMark);
  return mark != std::string::npos && name.size() - mark == std::strlen(kMark) + kIdDigits &&
         name.find_first_not_of("0123456789abcdef", mark + std::strlen(kMark)) == std::string::npos;
}

Result<Staging> Staging::make(const std::string& target, uint64_t id) {
  PEAL_TRY(checkReplaceable(target));
  Staging staging;
  staging.target_ = target;
  staging.path_ = stagingPath(target, id);
  staging.parent_ = parentOf(target);
  std::error_code fault;
  fs::create_directories(staging.parent_, fault);
  if (fault) {
    return fileError("cannot create the directory", staging.parent_, fault.value());
  }
  Result<File> parent = File::openDirectory(staging.parent_);
  if (!parent) {
    return parent.error();
  }
  staging.lock_ = std::move(*parent);
  PEAL_TRY(lockAndClean(staging.lock_, fs::path(target).filename().string()));
  if (mkdir(staging.path_.c_str(), 0777) != 0) {
    return fileError("cannot create the directory", staging.path_, errno);
  }
  return staging;
}

Result<void> Staging::publish() {
  PEAL_TRY(syncDirectory(path_));
  bool replaced = false;
  if (rename(path_.c_str(), target_.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) {
      return fileError("cannot rename the finished checkpoint to", target_, errno);
    }
    // The target holds an older checkpoint: the two change places, so there is one at every moment.
    if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
      Error error = fileError("cannot exchange the finished checkpoint with the older", target_, errno);
      error.message += "; where the file system cannot do that, save under another name";
      return error;
    }
    replaced = true;
  }
  isPublished_ = true;
  if (const Result<void> synced = lock_.sync(); !synced) {
    return Error{
        synced.error().code,
        fmt::format("{} is the new checkpoint and whole, but may be lost if the machine goes down: {}{}",
                    target_, synced.error().message,
                    replaced ? fmt::format("; the older one is in {} until the next save", path_) : "")};
  }
  if (replaced) {
    removeTree(path_);
  }
  return {};
}

void Staging::discard() const {
  if (!isPublished_) {
    removeTree(path_);
  }
}

}  // namespace peal::zero::checkpoint

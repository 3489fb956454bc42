#include "transports/shm/crossread.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/memory/descriptor.h"

namespace peal::shm {
namespace {

constexpr size_t kMostReadBytes = size_t{1} << 30;  // of one call: the system stops below 2 GiB

// Yama's mode: '0' no restriction (also where Yama is absent), '1' only ancestors and whom the process
// names, '2' only with CAP_SYS_PTRACE, '3' nobody.
char yamaScope() {
  char scope = '0';
  const OwnedFd file(open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC));
  return file && read(file.get(), &scope, 1) == 1 ? scope : '0';
}

}  // namespace

void allowPeersToRead() {
  if (yamaScope() == '1') {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  }
}

std::string readProcess(pid_t pid, uint64_t address, void* destination, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(kMostReadBytes, bytes - done);
    iovec local{static_cast<std::byte*>(destination) + done, piece};
    iovec remote{reinterpret_cast<void*>(address + done), piece};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got < 0) {
      return std::strerror(errno);
    }
    done += static_cast<size_t>(got);
    if (static_cast<size_t>(got) < piece) {
      return fmt::format("only {} of {} bytes are mapped", done, bytes);
    }
  }
  return "";
}

bool canReadProbe(pid_t pid, const Probe& probe) {
  Cookie seen{};
  return pid > 0 && readProcess(pid, probe.address, seen.data(), seen.size()).empty() && seen == probe.cookie;
}

std::string describeCrossRead(bool& works) {
  const Cookie here{1, 2, 3};
  Cookie there{};
  const std::string refused =
      readProcess(getpid(), reinterpret_cast<uint64_t>(here.data()), there.data(), there.size());
  works = false;
  if (!refused.empty()) {
    return fmt::format("process_vm_readv: {} (a container's system call filter?)", refused);
  }
  const char scope = yamaScope();
  if (scope >= '2' && geteuid() != 0) {
    return fmt::format("kernel.yama.ptrace_scope is {}: set it to 0 or 1", scope);
  }
  works = true;
  return scope == '1' ? "process_vm_readv, with this process's consent (kernel.yama.ptrace_scope is 1)"
                      : "process_vm_readv";
}

}  // namespace peal::shm

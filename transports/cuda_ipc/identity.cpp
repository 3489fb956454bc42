#include "transports/cuda_ipc/identity.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>

namespace peal::cuda {
namespace {

uint64_t pidNamespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? static_cast<uint64_t>(status.st_ino) : 0;
}

}  // namespace

Nonce randomNonce() {
  Nonce nonce{};
  size_t done = 0;
  while (done < nonce.size()) {  // 16 bytes come at once, once the machine has started
    const ssize_t got = getrandom(nonce.data() + done, nonce.size() - done, 0);
    done += got > 0 ? static_cast<size_t>(got) : 0;
  }
  return nonce;
}

ProcessIdentity processIdentity() {
  static std::mutex mutex;  // guards `identity`
  static ProcessIdentity identity{};
  const std::lock_guard lock(mutex);
  if (identity.pid != getpid()) {  // first call, or a forked child
    identity = {randomNonce(), pidNamespace(), getpid(), 0};
  }
  return identity;
}

PeerProcess::PeerProcess(const ProcessIdentity& peer) {
  const ProcessIdentity mine = processIdentity();
  if (peer.pidNamespace != 0 && peer.pidNamespace == mine.pidNamespace) {
    fd_ = OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  }
}

bool PeerProcess::ended() const {
  pollfd entry{fd_.get(), POLLIN, 0};
  return visible() && poll(&entry, 1, 0) > 0;
}

}  // namespace peal::cuda

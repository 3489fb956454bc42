// Which process a rank lives in, and whether that process still exists.
//
// Owns a descriptor per peer process. Used by this folder only.
#pragma once
#include <array>
#include <cstdint>

#include "lib/memory/descriptor.h"

namespace peal::cuda {

using Nonce = std::array<uint8_t, 16>;
Nonce randomNonce();

struct ProcessIdentity {
  Nonce nonce;            // drawn once per process: equal means the same process
  uint64_t pidNamespace;  // in which `pid` means something
  int32_t pid;
  int32_t reserved;
};
ProcessIdentity processIdentity();
inline bool sameProcess(const ProcessIdentity& a, const ProcessIdentity& b) { return a.nonce == b.nonce; }

// Another process. Opened while it surely lives (it has just taken part in an exchange), so that its number
// cannot have gone to somebody else.
class PeerProcess {
 public:
  PeerProcess() = default;
  explicit PeerProcess(const ProcessIdentity& peer);
  // False: it lives in a namespace where this process cannot see it, or the kernel is older than 5.3.
  bool visible() const { return static_cast<bool>(fd_); }
  bool ended() const;

 private:
  OwnedFd fd_;  // pidfd
};

}  // namespace peal::cuda

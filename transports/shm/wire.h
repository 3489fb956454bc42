// What ranks say to each other over their Unix sockets: sequenced packets, one struct each, sometimes with
// a descriptor. First the handshake, later farewells and regions.
//
// The socket also is the death detector: it ends when the peer's process does. Nothing here blocks.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "lib/base/result.h"
#include "lib/memory/descriptor.h"
#include "transports/shm/crossread.h"

namespace peal::shm {

inline constexpr uint32_t kWireVersion = 2;

enum class Note : uint32_t { Hello = 1, Reply, Segment, Farewell, RegionBegins, RegionEnds };

using Mac = std::array<uint8_t, 32>;
using Nonce = std::array<uint8_t, 16>;

// Handshake: the connecting (lower) rank says Hello, the other Reply, the first Segment. The last two carry
// the sender's memory file. A Mac covers all bytes before it and the listener's name, which is random and
// used once, so that no message of another communicator can be replayed.
struct Greeting {
  Note note;
  uint32_t version;
  int32_t srcRank;
  int32_t dstRank;
  Nonce nonce;  // Hello: random. Reply and Segment: the Hello's
  Probe probe;
  uint32_t canRead;  // Reply, Segment: the sender found the receiver's cookie
  uint32_t reserved;
  Mac mac;
};

inline constexpr size_t kReasonBytes = 512;
struct FarewellNote {
  Note note;
  int32_t culpritRank;  // -1: in good order
  uint32_t reasonBytes;
  char reason[kReasonBytes];

  static FarewellNote make(int culpritRank, const std::string& reason);
  std::string text() const;
};

// RegionBegins carries the memory file.
struct RegionNote {
  Note note;
  uint32_t reserved;
  uint64_t id;
  uint64_t bytes;
};

// One received packet. A descriptor that nobody takes is closed.
struct Packet {
  static constexpr size_t kMaxBytes = 1024;
  alignas(8) std::array<std::byte, kMaxBytes> bytes;
  size_t size = 0;
  OwnedFd file;
  bool fileLost = false;  // one came along, and this process may not open more: EMFILE

  Note note() const;
  // The packet as that struct if it has exactly its size.
  template <class T>
  const T* as() const {
    return size == sizeof(T) ? reinterpret_cast<const T*>(bytes.data()) : nullptr;
  }
};

enum class Got { Packet, Nothing, End };

// End: the other side is gone and everything it sent has been read.
Got receivePacket(int socket, Packet& packet);

// Sends without blocking; `file` may be -1. Returns 0 or the errno (EAGAIN: the peer has not read enough).
int sendPacket(int socket, const void* data, size_t bytes, int file);

// The names of listeners in the abstract namespace: random, and nothing in the file system.
using SocketName = std::array<char, 32>;
Result<OwnedFd> listenAt(const SocketName& name, int backlog);
// An error number instead of a sentence: the caller knows whom it calls.
int connectTo(const SocketName& name, OwnedFd& socket);

// Who is at the other end, as the kernel saw it when the connection was made.
struct PeerIdentity {
  int pid = 0;  // in this process's namespace; 0: not visible there
  unsigned uid = 0;
};
Result<PeerIdentity> peerIdentity(int socket);

}  // namespace peal::shm

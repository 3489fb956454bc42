// What an IPC handle's 64 bytes hold: where another process finds the memory file of an allocation or of an
// event. It opens /proc/PID/fd/N, so nothing is left behind when processes die, and a handle is worth nothing
// once the exporter has freed what it stands for.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <optional>

namespace peal::cudasim {

struct FileName {
  uint64_t magic;
  pid_t process;
  int fd;
  int device;  // as the machine numbers it
  uint64_t inode, id, bytes, mappedBytes;
};
static_assert(sizeof(FileName) <= 64);

constexpr uint64_t kMemoryMagic = 0x314d454d4d4953ull;
constexpr uint64_t kEventMagic = 0x315456454d4953ull;

template <class Handle>
Handle packHandle(const FileName& name) {
  Handle handle{};
  std::memcpy(handle.reserved, &name, sizeof name);
  return handle;
}
template <class Handle>
FileName unpackHandle(const Handle& handle) {
  FileName name;
  std::memcpy(&name, handle.reserved, sizeof name);
  return name;
}

uint64_t inodeOf(int fd);
// The file, or -1 where the exporter is gone, has closed it, or has cut it off.
int openNamedFile(const FileName& name);

}  // namespace peal::cudasim

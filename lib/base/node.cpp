#include "lib/base/node.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "lib/base/config.h"

namespace peal {
namespace {

uint64_t namespaceId(const char* path) {
  struct stat info {};
  return stat(path, &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

void readBootId(std::array<char, 40>& bootId) {
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return;
  }
  const ssize_t got = read(fd, bootId.data(), bootId.size() - 1);
  close(fd);
  bootId[got > 0 ? static_cast<size_t>(got) : 0] = '\0';
  std::replace(bootId.begin(), bootId.end(), '\n', '\0');
}

// Of a long text the beginning, and a hash of the whole: two texts that differ stay different.
void readHostId(std::array<char, 64>& hostId) {
  if (!configuration()) {
    return;
  }
  std::string text = configuration()->text(Knob::HostId);
  if (text.size() >= hostId.size()) {
    text = text.substr(0, hostId.size() - 18) + "#" + std::to_string(std::hash<std::string>{}(text) >> 8);
    text.resize(std::min(text.size(), hostId.size() - 1));
  }
  std::memcpy(hostId.data(), text.data(), text.size());
}

bool haveHostId(const NodeIdentity& a, const NodeIdentity& b) {
  return a.hostId[0] != '\0' || b.hostId[0] != '\0';
}

}  // namespace

NodeIdentity nodeIdentity() {
  NodeIdentity node;
  readBootId(node.bootId);
  if (gethostname(node.hostName.data(), node.hostName.size() - 1) != 0) {
    node.hostName.fill('\0');
  }
  readHostId(node.hostId);
  node.networkNamespace = namespaceId("/proc/self/ns/net");
  return node;
}

bool sameMachine(const NodeIdentity& a, const NodeIdentity& b) {
  if (haveHostId(a, b)) {
    return a.hostId == b.hostId;
  }
  return a.bootId[0] != '\0' ? a.bootId == b.bootId : b.bootId[0] == '\0' && a.hostName == b.hostName;
}

bool sameNode(const NodeIdentity& a, const NodeIdentity& b) {
  if (haveHostId(a, b)) {
    return a.hostId == b.hostId;
  }
  return sameMachine(a, b) && a.networkNamespace == b.networkNamespace;
}

std::string nodeName(const NodeIdentity& node) {
  const size_t length = strnlen(node.hostName.data(), node.hostName.size());
  return length == 0 ? "?" : std::string(node.hostName.data(), length);
}

}  // namespace peal

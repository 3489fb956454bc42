#include "lib/base/node.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

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

}  // namespace

NodeIdentity nodeIdentity() {
  NodeIdentity node;
  readBootId(node.bootId);
  if (gethostname(node.hostName.data(), node.hostName.size() - 1) != 0) {
    node.hostName.fill('\0');
  }
  node.networkNamespace = namespaceId("/proc/self/ns/net");
  node.processNamespace = namespaceId("/proc/self/ns/pid");
  return node;
}

bool sameMachine(const NodeIdentity& a, const NodeIdentity& b) {
  return a.bootId[0] != '\0' ? a.bootId == b.bootId : b.bootId[0] == '\0' && a.hostName == b.hostName;
}

bool sameNode(const NodeIdentity& a, const NodeIdentity& b) {
  return sameMachine(a, b) && a.networkNamespace == b.networkNamespace;
}

bool shareProcessIds(const NodeIdentity& a, const NodeIdentity& b) {
  return sameNode(a, b) && a.processNamespace == b.processNamespace;
}

std::string nodeName(const NodeIdentity& node) {
  const size_t length = strnlen(node.hostName.data(), node.hostName.size());
  return length == 0 ? "?" : std::string(node.hostName.data(), length);
}

}  // namespace peal

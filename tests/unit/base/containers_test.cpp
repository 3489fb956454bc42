// Containers of one machine are one node exactly if they can share memory: what sameNode says is held against
// what the kernel lets a process in other namespaces do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "lib/base/node.h"
#include "tests/support/processes.h"

namespace peal::test {
namespace {

constexpr std::array<char, 5> kWord{"peal"};
constexpr int kLimitMs = 10000;
constexpr int kTickMs = 20;

// What the process in other namespaces found out, in memory that it shares with the test.
struct Report {
  NodeIdentity identity;
  int unshareErrno = 0;
  bool mapped = false;  // the memory that the test sent it
};

sockaddr_un abstractAddress(socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "peal-containers-test-" + std::to_string(getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// A message of one byte with a descriptor, in both directions.
struct Parcel {
  char byte = 'x';
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  Parcel() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
};

void sendDescriptor(int socket, int fd) {
  Parcel parcel;
  cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  EXPECT_EQ(sendmsg(socket, &parcel.message, MSG_NOSIGNAL), 1) << std::strerror(errno);
}

int receiveDescriptor(int socket) {
  Parcel parcel;
  int fd = -1;
  if (recvmsg(socket, &parcel.message, MSG_CMSG_CLOEXEC) == 1) {
    const cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    }
  }
  return fd;
}

// Whether this process gets memory from whoever listens there.
bool mapsMemoryFrom(const sockaddr_un& address, socklen_t length) {
  const int socketFd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  bool mapped = false;
  if (connect(socketFd, reinterpret_cast<const sockaddr*>(&address), length) == 0) {
    const int memory = receiveDescriptor(socketFd);
    void* const data = mmap(nullptr, kWord.size(), PROT_READ, MAP_SHARED, memory, 0);
    mapped = data != MAP_FAILED && std::memcmp(data, kWord.data(), kWord.size()) == 0;
    if (data != MAP_FAILED) {
      munmap(data, kWord.size());
    }
    close(memory);
  }
  close(socketFd);
  return mapped;
}

// Fills the report from a process in new namespaces of these kinds.
void reportFrom(int namespaces, const sockaddr_un& address, socklen_t length, Report& report) {
  if (unshare(namespaces) != 0) {
    report.unshareErrno = errno;
    return;
  }
  leaksCanBeChecked = (namespaces & CLONE_NEWPID) == 0;
  if ((namespaces & CLONE_NEWUTS) != 0) {
    EXPECT_EQ(sethostname("peal-container", 14), 0);
  }
  // A new process: only children are in a new namespace of process ids.
  const pid_t inside = fork();
  if (inside == 0) {
    report.identity = nodeIdentity();
    report.mapped = mapsMemoryFrom(address, length);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(inside, &status, 0), inside);
  EXPECT_EQ(status, 0);
}

class Containers : public testing::TestWithParam<std::pair<int, bool>> {
 protected:
  void SetUp() override {
    report_ = static_cast<Report*>(
        mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(static_cast<void*>(report_), MAP_FAILED);
    new (report_) Report;
    memory_ = memfd_create("peal-test", MFD_CLOEXEC);
    ASSERT_EQ(write(memory_, kWord.data(), kWord.size()), static_cast<ssize_t>(kWord.size()));
    address_ = abstractAddress(length_);
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ASSERT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address_), length_), 0)
        << std::strerror(errno);
    ASSERT_EQ(listen(listener_, 1), 0);
  }
  void TearDown() override {
    close(listener_);
    close(memory_);
    munmap(report_, sizeof(Report));
  }

  Report* report_ = nullptr;
  int memory_ = -1;
  int listener_ = -1;
  sockaddr_un address_{};
  socklen_t length_ = 0;
};

TEST_P(Containers, AreOneNodeIfTheyCanShareMemory) {
  const auto [namespaces, oneNode] = GetParam();
  Processes processes(1, [&, kinds = namespaces](const Child& child) {
    reportFrom(kinds, address_, length_, *report_);
    child.say("done");
    return 0;
  });
  // Its pipe is readable when it is done, the listener when it asks for memory.
  bool done = false;
  for (int leftMs = kLimitMs; !done && leftMs > 0; leftMs -= kTickMs) {
    pollfd waiting{listener_, POLLIN, 0};
    if (poll(&waiting, 1, kTickMs) > 0) {
      const int peer = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      sendDescriptor(peer, memory_);
      close(peer);
    }
    done = processes.waitForMessage(0, std::chrono::milliseconds(0));
  }
  expectAllSucceeded(processes.wait(std::chrono::milliseconds(kLimitMs)));
  if (report_->unshareErrno == EPERM || report_->unshareErrno == ENOSYS) {
    GTEST_SKIP() << "new namespaces are for root only here: " << std::strerror(report_->unshareErrno);
  }
  ASSERT_EQ(report_->unshareErrno, 0) << std::strerror(report_->unshareErrno);
  EXPECT_EQ(report_->mapped, oneNode);
  EXPECT_EQ(sameNode(nodeIdentity(), report_->identity), report_->mapped);
  EXPECT_TRUE(sameMachine(nodeIdentity(), report_->identity));
}

INSTANTIATE_TEST_SUITE_P(
    Namespaces, Containers,
    testing::Values(std::pair{0, true}, std::pair{CLONE_NEWNET, false}, std::pair{CLONE_NEWPID, true},
                    std::pair{CLONE_NEWUTS, true}, std::pair{CLONE_NEWIPC | CLONE_NEWNS, true},
                    std::pair{CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWNS, false}));

}  // namespace
}  // namespace peal::test

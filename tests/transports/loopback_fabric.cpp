#include "tests/transports/loopback_fabric.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <deque>

#include "lib/bootstrap/socket.h"

namespace peal::test {
namespace {

using Bytes = std::vector<std::byte>;

struct FrameHeader {
  enum class Kind : uint32_t { Message = 1, Credit = 2 };
  Kind kind = Kind::Message;
  uint32_t bytes = 0;     // of a message
  uint64_t released = 0;  // of a credit
  Digest digest;
};

Error failed(const char* what) { return {pealSystemError, std::string(what) + ": " + errnoText(errno)}; }

class LoopbackLink final : public Link {
 public:
  LoopbackLink(const FabricOptions& options, int peerRank, Socket socket, FabricFaults& faults)
      : options_(options), peerRank_(peerRank), socket_(std::move(socket)), faults_(faults) {
    staged_.resize(options.slotBytes);
  }

  std::byte* tryStage(size_t bytes) override {
    return bytes <= options_.slotBytes && posted_ - released_ < static_cast<uint64_t>(options_.slots)
               ? staged_.data()
               : nullptr;
  }
  void post(size_t bytes, const Digest& digest) override {
    FrameHeader header;
    header.bytes = static_cast<uint32_t>(bytes);
    header.digest = digest;
    put(&header, sizeof header);
    put(staged_.data(), bytes);
    ++posted_;
    flush();
  }
  bool tryPostReference(const std::byte*, size_t, const Digest&) override { return false; }
  bool canReference(const std::byte*, size_t) override { return false; }
  bool drained() override { return true; }
  uint64_t posted() const override { return posted_; }
  bool released(uint64_t count) override { return released_ >= count; }

  bool tryReceive(Arrival& arrival) override {
    if (arrived_.empty()) {
      return false;
    }
    const auto& [digest, data] = arrived_.front();
    arrival = {data.data(), data.size(), digest};
    return true;
  }
  void release() override {
    arrived_.pop_front();
    FrameHeader header;
    header.kind = FrameHeader::Kind::Credit;
    header.released = ++taken_;
    put(&header, sizeof header);
    flush();
  }

  int fd() const { return socket_.fd(); }
  bool settled() const { return outbox_.empty() || ended_; }

  void poll() {
    flush();
    std::byte buffer[65536];
    while (!ended_) {
      const ssize_t got = ::recv(socket_.fd(), buffer, sizeof buffer, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        break;
      }
      if (got <= 0) {
        end(got == 0 ? "its connection ended" : "its connection failed: " + errnoText(errno));
        break;
      }
      inbox_.insert(inbox_.end(), buffer, buffer + got);
    }
    parse();
  }

 private:
  void put(const void* data, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    outbox_.insert(outbox_.end(), begin, begin + bytes);
  }

  void flush() {
    size_t sent = 0;
    while (sent < outbox_.size() && !ended_) {
      const ssize_t went = ::send(socket_.fd(), outbox_.data() + sent, outbox_.size() - sent, MSG_NOSIGNAL);
      if (went < 0) {
        break;  // full; or at its end, which reading tells
      }
      sent += static_cast<size_t>(went);
    }
    outbox_.erase(outbox_.begin(), outbox_.begin() + static_cast<std::ptrdiff_t>(sent));
  }

  void parse() {
    FrameHeader header;
    size_t at = 0;
    while (inbox_.size() - at >= sizeof header) {
      std::memcpy(&header, inbox_.data() + at, sizeof header);
      if (header.kind == FrameHeader::Kind::Credit) {
        released_ = header.released;
        at += sizeof header;
        continue;
      }
      if (header.bytes > options_.slotBytes) {
        end("it sent a message that no slot can hold");
        break;
      }
      if (inbox_.size() - at < sizeof header + header.bytes) {
        break;
      }
      const auto begin = inbox_.begin() + static_cast<std::ptrdiff_t>(at + sizeof header);
      arrived_.emplace_back(header.digest, Bytes(begin, begin + header.bytes));
      at += sizeof header + header.bytes;
    }
    inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void end(const std::string& why) {
    ended_ = true;
    socket_.close();
    faults_.raise(peerRank_, {pealRemoteError,
                              "the loopback link to rank " + std::to_string(peerRank_) + " failed: " + why});
  }

  const FabricOptions options_;
  const int peerRank_;
  Socket socket_;
  FabricFaults& faults_;
  bool ended_ = false;
  Bytes staged_;
  Bytes outbox_;
  Bytes inbox_;
  std::deque<std::pair<Digest, Bytes>> arrived_;
  uint64_t posted_ = 0;
  uint64_t released_ = 0;
  uint64_t taken_ = 0;
};

class LoopbackFabric final : public Fabric {
 public:
  explicit LoopbackFabric(const FabricOptions& options) : options_(options) {}
  const char* name() const override { return "loopback"; }

  Result<void> connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane&,
                       Deadline deadline) override {
    links_.resize(static_cast<size_t>(exchange.size()));
    epoll_ = Socket(epoll_create1(EPOLL_CLOEXEC));
    const in_addr loopback{htonl(INADDR_LOOPBACK)};
    Listening listening = listenAt(ipv4Address(&loopback, 0));
    const uint16_t port = boundPort(listening.socket);
    const Result<std::vector<Bytes>> ports =
        exchange.allGather(Bytes{static_cast<std::byte>(port & 0xff), static_cast<std::byte>(port >> 8)});
    if (!ports) {
      return ports.error();
    }
    size_t awaited = 0;
    for (const int peer : peers) {
      if (peer < exchange.rank()) {
        ++awaited;
        continue;
      }
      const Bytes& theirs = (*ports)[static_cast<size_t>(peer)];
      const Address address = ipv4Address(
          &loopback,
          static_cast<uint16_t>(static_cast<unsigned>(theirs[0]) | static_cast<unsigned>(theirs[1]) << 8));
      Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int32_t rank = exchange.rank();
      if (::connect(socket.fd(), address.pointer(), address.length) != 0 ||
          ::send(socket.fd(), &rank, sizeof rank, MSG_NOSIGNAL) != sizeof rank) {
        return failed("connect to a loopback port");
      }
      add(peer, std::move(socket));
    }
    while (awaited > 0) {
      pollfd entry{listening.socket.fd(), POLLIN, 0};
      if (::poll(&entry, 1, deadline.leftMs()) <= 0) {
        return Error{pealTimeout, "a rank did not call the loopback listener"};
      }
      Socket socket(::accept4(listening.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      int32_t rank = -1;
      if (::recv(socket.fd(), &rank, sizeof rank, MSG_WAITALL) != sizeof rank) {
        return failed("recv of a rank's number");
      }
      add(rank, std::move(socket));
      --awaited;
    }
    return {};
  }

  Link& link(int peerRank) override { return *links_.at(static_cast<size_t>(peerRank)); }
  void poll() override {
    for (const std::unique_ptr<LoopbackLink>& link : links_) {
      if (link) {
        link->poll();
      }
    }
  }
  bool settled() override {
    for (const std::unique_ptr<LoopbackLink>& link : links_) {
      if (link && !link->settled()) {
        return false;
      }
    }
    return true;
  }
  const std::optional<FabricFault>& fault() const override { return faults_.first(); }
  void excuse(int peerRank) override { faults_.excuse(peerRank); }
  void onControl(int, std::span<const std::byte>) override {}
  int eventDescriptor() const override { return epoll_.fd(); }
  bool arm() override {
    for (const std::unique_ptr<LoopbackLink>& link : links_) {
      if (link && !link->settled()) {
        return false;  // the sockets are watched for reading only
      }
    }
    return true;
  }

 private:
  void add(int peer, Socket socket) {
    sendAtOnce(socket);
    fcntl(socket.fd(), F_SETFL, O_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, socket.fd(), &event);
    links_.at(static_cast<size_t>(peer)) =
        std::make_unique<LoopbackLink>(options_, peer, std::move(socket), faults_);
  }
  const FabricOptions options_;
  Socket epoll_;
  FabricFaults faults_;
  std::vector<std::unique_ptr<LoopbackLink>> links_;
};

}  // namespace

Result<std::unique_ptr<Fabric>> openLoopback(const FabricOptions& options) {
  return std::unique_ptr<Fabric>(std::make_unique<LoopbackFabric>(options));
}

}  // namespace peal::test

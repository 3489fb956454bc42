// The joining side: membership of a rendezvous and its exchanges. See bootstrap.h.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "lib/bootstrap/bootstrap.h"
#include "lib/bootstrap/connect.h"

namespace peal {
namespace {

// The root's verdict, which names the missing ranks, comes when our deadline ends; this is for its way.
constexpr int64_t kVerdictMs = 500;
constexpr int kJoinTriesMost = 8;

size_t bodyMostBytes(int size) {
  constexpr size_t kFailureMost = 1 << 20;
  return std::max(kFailureMost, static_cast<size_t>(size) * (4 + kBlobMostBytes));
}

// Frames to and from the root, each awaited until a deadline.
class RootChannel {
 public:
  RootChannel(RootConnection connection, const Key& key, int size)
      : socket_(std::move(connection.socket)),
        root_(std::move(connection.root)),
        writer_(directionKey(key, connection.nonces, Direction::RankToRoot)),
        reader_(directionKey(key, connection.nonces, Direction::RootToRank), bodyMostBytes(size)) {}

  Result<void> send(ByteView bytes, Deadline deadline) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes = bytes.subspan(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        PEAL_TRY(await(POLLOUT, deadline));
      } else if (errno == EPIPE || errno == ECONNRESET) {
        return Result<void>();  // the root's last word may still be in our receive buffer
      } else if (errno != EINTR) {
        return gone(errnoText(errno));
      }
    }
    return {};
  }
  Result<void> sendFrame(FrameType type, ByteView body, Deadline deadline) {
    return send(writer_.frame(type, body), deadline);
  }

  // The next frame, which must be of `type`; a Failure becomes the error it carries.
  Result<Bytes> receive(FrameType type, Deadline deadline) {
    while (true) {
      Result<std::optional<Frame>> frame = reader_.next();
      if (!frame) {
        return Error{pealRemoteError,
                     fmt::format("the connection to the rendezvous at {} cannot be believed: {}.", root_,
                                 frame.error().message)};
      }
      if (frame->has_value()) {
        return accept(std::move(**frame), type);
      }
      PEAL_TRY(fill(deadline));
    }
  }

  // Whether the root ended the connection without a word.
  bool hungUp() const { return hungUp_; }

  // Tells the root that this rank ends in good order; nothing waits for it.
  void leave() {
    const Bytes frame = writer_.frame(FrameType::Leave, {});
    (void)::send(socket_.fd(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  Error gone(const std::string& how) const {
    return Error{
        pealRemoteError,
        fmt::format("the rendezvous at {} is gone ({}): the process of the first rank has ended. Look at "
                    "its own output for the cause.",
                    root_, how)};
  }

  Result<void> await(short events, Deadline deadline) {
    pollfd polled{socket_.fd(), events, 0};
    const int ready = poll(&polled, 1, deadline.leftMs());
    if (ready > 0 || (ready < 0 && errno == EINTR) || !deadline.passed()) {
      return {};
    }
    return Error{pealTimeout,
                 fmt::format("the rendezvous at {} did not answer in time: its process is stopped or its "
                             "machine cannot be reached any more.",
                             root_)};
  }

  Result<void> fill(Deadline deadline) {
    PEAL_TRY(await(POLLIN, deadline));
    buffer_.resize(65536);
    const ssize_t got = ::recv(socket_.fd(), buffer_.data(), buffer_.size(), 0);
    if (got > 0) {
      reader_.feed(ByteView(buffer_).first(static_cast<size_t>(got)));
      return {};
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      return {};
    }
    hungUp_ = true;
    return gone(got == 0 ? "it hung up" : errnoText(errno));
  }

  Result<Bytes> accept(Frame frame, FrameType type) const {
    if (frame.type == type) {
      return std::move(frame.body);
    }
    if (frame.type == FrameType::Failure && frame.body.size() >= 4) {
      const auto code = readInteger<uint32_t>(frame.body);
      const std::string sentence(textOf(ByteView(frame.body).subspan(4)));
      const bool known = code > pealSuccess && code < pealNumResults;
      return Error{known ? static_cast<pealResult_t>(code) : pealRemoteError, sentence};
    }
    return Error{pealInternalError,
                 fmt::format("the rendezvous at {} sent a frame of type {} and {} bytes where "
                             "type {} was due.",
                             root_, static_cast<uint32_t>(frame.type), frame.body.size(),
                             static_cast<uint32_t>(type))};
  }

  Socket socket_;
  std::string root_;
  FrameWriter writer_;
  FrameReader reader_;
  Bytes buffer_;
  bool hungUp_ = false;
};

Result<std::vector<Bytes>> parseTable(const Bytes& table, int size) {
  const Error malformed{pealInternalError, "the rendezvous sent a table whose lengths do not fit its size."};
  const auto ranks = static_cast<size_t>(size);
  if (table.size() < 4 * ranks) {
    return malformed;
  }
  std::vector<Bytes> blobs(ranks);
  ByteView rest = ByteView(table).subspan(4 * ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const size_t bytes = readInteger<uint32_t>(ByteView(table).subspan(4 * rank));
    if (bytes > rest.size()) {
      return malformed;
    }
    blobs[rank].assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(bytes));
    rest = rest.subspan(bytes);
  }
  if (!rest.empty()) {
    return malformed;
  }
  return blobs;
}

class Membership : public Rendezvous {
 public:
  Membership(int rank, int size, RootChannel channel, const Secret& secret, int64_t waitMs)
      : rank_(rank), size_(size), channel_(std::move(channel)), secret_(secret), waitMs_(waitMs) {}
  ~Membership() override { channel_.leave(); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const Secret& secret() const override { return secret_; }

  Result<std::vector<Bytes>> allGather(const Bytes& mine) override {
    if (mine.size() > kBlobMostBytes) {
      return Error{pealInvalidArgument, fmt::format("rank {} gave {} bytes to an exchange; {} is the most.",
                                                    rank_, mine.size(), kBlobMostBytes)};
    }
    if (broken_) {
      return *broken_;
    }
    Result<std::vector<Bytes>> blobs = exchange(mine);
    if (!blobs) {
      broken_ = blobs.error();
    }
    return blobs;
  }

 private:
  Result<std::vector<Bytes>> exchange(const Bytes& mine) {
    const Deadline deadline = Deadline::afterMs(waitMs_ + kVerdictMs);
    Bytes body;
    appendInteger(body, static_cast<uint32_t>(waitMs_));
    append(body, mine);
    PEAL_TRY(channel_.sendFrame(FrameType::Blob, body, deadline));
    const Result<Bytes> table = channel_.receive(FrameType::Table, deadline);
    if (!table) {
      return table.error();
    }
    return parseTable(*table, size_);
  }

  int rank_;
  int size_;
  RootChannel channel_;
  Secret secret_;
  int64_t waitMs_;               // of an exchange: as long as joining was given
  std::optional<Error> broken_;  // the first error; every later exchange returns it too
};

}  // namespace

Result<std::unique_ptr<Rendezvous>> joinRendezvous(const pealUniqueId& id, int rank, int size,
                                                   Deadline deadline) {
  if (size < 1 || size > kRanksMost || rank < 0 || rank >= size) {
    return Error{pealInvalidArgument,
                 fmt::format("rank {} of {}: ranks go from 0 to size - 1, and a communicator "
                             "has 1 to {} of them.",
                             rank, size, kRanksMost)};
  }
  PEAL_TRY(startSodium());
  Result<IdContent> content = decodeId(id);
  if (!content) {
    return content.error();
  }
  const int64_t waitMs = std::max(1, deadline.leftMs());
  const Key key = rendezvousKey(*content);
  std::optional<Error> cut;  // how the try before ended
  for (int tries = 1;; ++tries) {
    Result<RootConnection> root = reachRoot(*content, key, deadline);
    if (!root && cut) {
      return *cut;
    }
    if (!root) {
      return Error{root.error().code, fmt::format("rank {} of {} {}", rank, size, root.error().message)};
    }
    const uint32_t leftMs = static_cast<uint32_t>(std::max(1, deadline.leftMs()));
    const Bytes join =
        makeJoin(key, root->nonces, {static_cast<uint32_t>(rank), static_cast<uint32_t>(size), leftMs});
    RootChannel channel(std::move(*root), key, size);
    const Deadline verdict = Deadline::afterMs(int64_t{leftMs} + kVerdictMs);
    PEAL_TRY(channel.send(join, verdict));
    const Result<Bytes> welcome = channel.receive(FrameType::Welcome, verdict);
    if (welcome) {
      const Secret secret = deriveKey(key, "communicator", *welcome);
      return std::unique_ptr<Rendezvous>(
          std::make_unique<Membership>(rank, size, std::move(channel), secret, waitMs));
    }
    // A root that lives never hangs up on a rank that has joined. Either it needed our place while strangers
    // crowded it, or it has died: another try tells which, and must not wait for a root to start.
    if (!channel.hungUp() || tries == kJoinTriesMost) {
      return welcome.error();
    }
    cut = welcome.error();
    content->start = RootStart::Before;
  }
}

}  // namespace peal

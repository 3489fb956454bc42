#include "transports/shm/connect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <list>
#include <optional>

#include "lib/base/log.h"
#include "transports/shm/card.h"

namespace peal::shm {
namespace {

constexpr int kPatienceMs = 200;

// One connection that is being made.
struct Conversation {
  enum class Awaits { Hello, Reply, Segment };
  OwnedFd socket;
  Awaits awaits = Awaits::Hello;
  int peer = -1;  // -1: nobody has proven anything yet
  pid_t pid = 0;
  Nonce nonce{};
  bool weCanRead = false;
};

class Handshake {
 public:
  Handshake(const SecretKey& secret, const Layout& layout, const ShmOptions& options, const Card& mine,
            OwnSegment& own, OwnedFd listener)
      : greeter_(secret, mine.rank, layout.size()),
        layout_(layout),
        options_(options),
        mine_(mine),
        own_(own),
        listener_(std::move(listener)) {
    membership_.rank = mine.rank;
    membership_.segment = own.segment;
    membership_.peers.resize(static_cast<size_t>(layout.size()));
  }

  Result<Membership> run(std::vector<Card> cards) {
    cards_ = std::move(cards);
    const Result<void> met = meetAll();
    if (!met) {
      tellFailure(met.error());
      return met.error();
    }
    return std::move(membership_);
  }

 private:
  Peer& peer(int rank) { return membership_.peers[static_cast<size_t>(rank)]; }
  const Card& card(int rank) const { return cards_[static_cast<size_t>(rank)]; }
  std::string nameOf(int rank) const {
    return fmt::format("rank {} (pid {})", options_.numberOf(rank), card(rank).pid);
  }

  Result<void> meetAll() {
    for (int rank = 0; rank < layout_.size(); ++rank) {
      // Held from now on: a quick peer may be gone again before this rank has finished.
      if (rank != mine_.rank && card(rank).process == mine_.process) {
        peer(rank).segment = findLocally(card(rank).segment);
      }
      if (rank > mine_.rank) {
        toCall_.push_back(rank);
      }
    }
    while (met_ < layout_.size() - 1) {
      PEAL_TRY(callHigherRanks());
      if (options_.deadline.passed()) {
        return gone_ ? *gone_ : missingError();
      }
      if (gone_ && patience_.passed()) {
        return *gone_;
      }
      PEAL_TRY(serve());
    }
    return {};
  }

  // A listener whose queue is full is called again in the next turn.
  Result<void> callHigherRanks() {
    size_t busy = 0;  // the front of the list
    while (busy < toCall_.size()) {
      const int rank = toCall_[busy];
      Conversation conversation;
      const int failed = connectTo(card(rank).listener, conversation.socket);
      if (failed == EAGAIN) {
        ++busy;
        continue;
      }
      if (failed == ECONNREFUSED) {
        noteGone({pealRemoteError,
                  fmt::format("{} stopped listening while ranks were connecting: it died or failed.",
                              nameOf(rank))});
        toCall_.erase(toCall_.begin() + static_cast<std::ptrdiff_t>(busy));
        continue;
      }
      if (failed != 0) {
        return systemError(fmt::format("connecting to {}", nameOf(rank)), failed);
      }
      conversation.awaits = Conversation::Awaits::Reply;
      conversation.peer = rank;
      PEAL_TRY(identify(conversation));
      randombytes_buf(conversation.nonce.data(), conversation.nonce.size());
      PEAL_TRY(greet(conversation, Note::Hello, card(rank).listener, -1));
      conversations_.push_back(std::move(conversation));
      toCall_.erase(toCall_.begin() + static_cast<std::ptrdiff_t>(busy));
    }
    return {};
  }

  Result<void> serve() {
    std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
    for (const Conversation& conversation : conversations_) {
      entries.push_back({conversation.socket.get(), POLLIN, 0});
    }
    const int soonMs = gone_ ? patience_.leftMs() : 1000;
    const int timeoutMs = std::min({options_.deadline.leftMs(), soonMs, toCall_.empty() ? 1000 : 1});
    if (poll(entries.data(), entries.size(), timeoutMs) < 0 && errno != EINTR) {
      return systemError("poll", errno);
    }
    size_t index = 1;
    for (auto at = conversations_.begin(); at != conversations_.end(); ++index) {
      bool over = false;
      if (entries[index].revents != 0) {
        const Result<bool> turn = takeTurn(*at);
        if (!turn) {
          return turn.error();
        }
        over = *turn;
      }
      at = over ? conversations_.erase(at) : std::next(at);
    }
    return entries[0].revents != 0 ? acceptCallers() : Result<void>{};
  }

  Result<void> acceptCallers() {
    for (;;) {
      Conversation conversation;
      conversation.socket = OwnedFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!conversation.socket) {
        const bool none = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
        return none ? Result<void>{} : systemError("accept on a Unix socket", errno);
      }
      if (!identify(conversation)) {
        ++strangers_;
        continue;
      }
      dropOldestStranger();
      conversations_.push_back(std::move(conversation));
    }
  }

  // Strangers who connect and say nothing must not use up the descriptors.
  void dropOldestStranger() {
    const auto unproven = [](const Conversation& c) { return c.peer < 0; };
    const auto count = std::count_if(conversations_.begin(), conversations_.end(), unproven);
    if (count >= 2 * layout_.size() + 16) {
      conversations_.erase(std::find_if(conversations_.begin(), conversations_.end(), unproven));
      ++strangers_;
    }
  }

  // The user at the other end must be ours.
  Result<void> identify(Conversation& conversation) const {
    const Result<PeerIdentity> identity = peerIdentity(conversation.socket.get());
    if (!identity) {
      return identity.error();
    }
    if (identity->uid != geteuid()) {
      return Error{pealInvalidUsage,
                   fmt::format("{} runs as user {}, this rank as user {}. Ranks share memory only with "
                               "ranks of their own user.",
                               conversation.peer < 0 ? "a caller" : nameOf(conversation.peer), identity->uid,
                               geteuid())};
    }
    conversation.pid = identity->pid;
    return {};
  }

  Result<void> greet(const Conversation& conversation, Note note, const SocketName& listener, int file) {
    const Greeting greeting =
        greeter_.make(note, conversation.peer, conversation.nonce, conversation.weCanRead, listener);
    const int failed = sendPacket(conversation.socket.get(), &greeting, sizeof greeting, file);
    // A peer that is gone may have said why: its last packet, or the end, is read in its turn.
    return failed == 0 || failed == EPIPE || failed == ECONNRESET
               ? Result<void>{}
               : systemError(fmt::format("sending to {}", nameOf(conversation.peer)), failed);
  }

  // Reads what has come. True: the conversation is over (met, or a stranger sent away).
  Result<bool> takeTurn(Conversation& conversation) {
    Packet packet;
    switch (receivePacket(conversation.socket.get(), packet)) {
      case Got::Nothing:
        return false;
      case Got::End:
        break;
      case Got::Packet:
        if (conversation.awaits == Conversation::Awaits::Hello) {
          return answerHello(conversation, packet);
        }
        return finish(conversation, packet);
    }
    if (conversation.peer < 0) {
      ++strangers_;
      return true;
    }
    noteGone(closedError(conversation.peer));
    return true;
  }

  // A peer that is gone without a word may be gone because of another, whose farewell is on its way.
  void noteGone(Error error) {
    if (!gone_) {
      gone_ = std::move(error);
      patience_ = Deadline::afterMs(kPatienceMs);
    }
  }

  Result<bool> answerHello(Conversation& conversation, const Packet& packet) {
    const Greeting* hello = packet.as<Greeting>();
    if (hello == nullptr || !greeter_.isGenuine(*hello, Note::Hello, mine_.listener) ||
        hello->srcRank >= mine_.rank || peer(hello->srcRank).socket || isTalkingTo(hello->srcRank)) {
      ++strangers_;
      return true;
    }
    conversation.peer = hello->srcRank;
    conversation.nonce = hello->nonce;
    conversation.awaits = Conversation::Awaits::Segment;
    conversation.weCanRead = options_.directRead && canReadProbe(conversation.pid, hello->probe);
    PEAL_TRY(greet(conversation, Note::Reply, mine_.listener, own_.file.get()));
    return false;
  }

  // The Reply or the Segment: both bring the peer's memory file.
  Result<bool> finish(Conversation& conversation, const Packet& packet) {
    const bool called = conversation.awaits == Conversation::Awaits::Reply;
    const SocketName& listener = called ? card(conversation.peer).listener : mine_.listener;
    if (const FarewellNote* farewell = packet.as<FarewellNote>();
        farewell != nullptr && farewell->note == Note::Farewell) {
      return Error{pealRemoteError, fmt::format("{} gave up while ranks were connecting: {}",
                                                nameOf(conversation.peer), farewell->text())};
    }
    if (packet.fileLost) {
      return systemError(fmt::format("rank {} could not take the memory file of {}",
                                     options_.numberOf(mine_.rank), nameOf(conversation.peer)),
                         EMFILE);
    }
    const Greeting* greeting = packet.as<Greeting>();
    if (greeting == nullptr ||
        !greeter_.isGenuine(*greeting, called ? Note::Reply : Note::Segment, listener) ||
        greeting->srcRank != conversation.peer || greeting->nonce != conversation.nonce || !packet.file) {
      return Error{pealRemoteError, fmt::format("{} did not prove that it belongs to this communicator.",
                                                nameOf(conversation.peer))};
    }
    if (called) {
      conversation.weCanRead = options_.directRead && canReadProbe(conversation.pid, greeting->probe);
      PEAL_TRY(greet(conversation, Note::Segment, listener, own_.file.get()));
    }
    PEAL_TRY(adopt(conversation, packet.file.get(), greeting->canRead != 0));
    return true;
  }

  Result<void> adopt(Conversation& conversation, int file, bool peerCanRead) {
    Peer& made = peer(conversation.peer);
    // What the card claims counts only if the kernel confirms it.
    made.sameProcess = made.segment != nullptr && conversation.pid == getpid();
    if (!made.sameProcess) {
      Result<std::shared_ptr<Segment>> segment = mapSegment(layout_, conversation.peer, file);
      if (!segment) {
        return segment.error();
      }
      made.segment = std::move(*segment);
    }
    made.pid = conversation.pid;
    made.weCanRead = conversation.weCanRead;
    made.peerCanRead = peerCanRead;
    made.socket = std::move(conversation.socket);
    ++met_;
    return {};
  }

  bool isTalkingTo(int rank) const {
    return std::any_of(conversations_.begin(), conversations_.end(),
                       [rank](const Conversation& c) { return c.peer == rank; });
  }

  Error closedError(int rank) const {
    return Error{pealRemoteError, fmt::format("{} closed its connection while ranks were connecting: it "
                                              "died, failed (its own error says why), or knows another "
                                              "secret.",
                                              nameOf(rank))};
  }

  Error missingError() {
    std::vector<int> missing;
    for (int rank = 0; rank < layout_.size(); ++rank) {
      if (rank != mine_.rank && !peer(rank).socket) {
        missing.push_back(options_.numberOf(rank));
      }
    }
    return Error{pealTimeout,
                 fmt::format("rank {} could not connect over shared memory in time: no answer "
                             "from rank {}; {} strangers were turned away. Raise "
                             "PEAL_INIT_TIMEOUT_MS if those ranks are only slow.",
                             options_.numberOf(mine_.rank), fmt::join(missing, ", "), strangers_)};
  }

  // So that peers name the cause instead of waiting for this rank. Those that it has not called yet are
  // called now: closing the rest has freed descriptors, if those were the trouble.
  void tellFailure(const Error& error) {
    const FarewellNote farewell = FarewellNote::make(mine_.rank, error.message);
    const auto tell = [&farewell](const OwnedFd& socket) {
      return sendPacket(socket.get(), &farewell, sizeof farewell, -1);
    };
    for (const Conversation& conversation : conversations_) {
      if (conversation.peer >= 0) {
        tell(conversation.socket);
      }
    }
    for (const Peer& met : membership_.peers) {
      if (met.socket) {
        tell(met.socket);
      }
    }
    conversations_.clear();
    listener_.reset();
    for (const int rank : toCall_) {
      Conversation conversation;
      conversation.peer = rank;
      if (connectTo(card(rank).listener, conversation.socket) == 0 &&
          greet(conversation, Note::Hello, card(rank).listener, -1)) {
        tell(conversation.socket);
      }
    }
  }

  const Greeter greeter_;
  const Layout& layout_;
  const ShmOptions& options_;
  const Card& mine_;
  OwnSegment& own_;
  OwnedFd listener_;
  std::vector<Card> cards_;
  Membership membership_;
  std::list<Conversation> conversations_;
  std::vector<int> toCall_;
  std::optional<Error> gone_;  // a peer that is gone, and until when somebody may still say why
  Deadline patience_ = Deadline::afterMs(0);
  int met_ = 0;
  int strangers_ = 0;
};

}  // namespace

Result<Membership> connectPeers(Exchange& exchange, const SecretKey& secret, const ShmOptions& options,
                                const Layout& layout) {
  if (sodium_init() < 0) {
    return Error{pealSystemError, "libsodium found no source of random numbers"};
  }
  Card mine = makeCard(exchange.rank(), layout);
  Result<OwnedFd> listener = listenAt(mine.listener, layout.size() + 16);
  Result<OwnSegment> own = createSegment(layout, exchange.rank());
  if (!listener || !own) {
    setFailure(mine, !listener ? listener.error() : own.error());
  } else {
    publishLocally(mine.segment, own->segment);
  }
  if (options.directRead) {
    allowPeersToRead();
  }
  const Result<std::vector<std::vector<std::byte>>> blobs = exchange.allGather(encode(mine));
  if (!blobs) {
    return blobs.error();
  }
  Result<std::vector<Card>> cards = decodeCards(*blobs, mine, options.ranks);
  if (!cards) {
    return cards.error();
  }
  Handshake handshake(secret, layout, options, mine, *own, std::move(*listener));
  return handshake.run(std::move(*cards));
}

}  // namespace peal::shm

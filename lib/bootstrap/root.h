// The root service: one thread in the process of the first rank that lets ranks in, notices the ones that do
// not come or leave, and hands every rank everybody's blobs.
//
// A state machine over poll(): nothing in it blocks, so nobody can stall it. Whoever has not proved the
// secret gets a short deadline, a few dozen bytes of buffer and a bounded number of places, and is dropped
// and counted at the first wrong byte. It must never reveal anything to a peer that has not proved the
// secret, and never touch what exit() destroys.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/bootstrap/roster.h"
#include "lib/bootstrap/socket.h"
#include "lib/bootstrap/wire.h"

namespace peal {

struct RootOptions {
  Key key{};
  std::vector<Socket> listeners;
  int64_t joinMs = 60000;      // how long it waits for all ranks
  int64_t helloMs = 5000;      // how long one connection may take to prove the secret
  size_t strangersMost = 256;  // connections at a time that have not proved it
};

class RootService {
 public:
  // Starts the thread.
  static Result<std::unique_ptr<RootService>> start(RootOptions options);
  // Ends the thread: what is ready to be sent is sent (for at most 500 ms), the rest is cut.
  ~RootService();
  RootService(const RootService&) = delete;
  RootService& operator=(const RootService&) = delete;

  bool finished() const;
  // Whether ranks can still come in.
  bool doorOpen() const;
  // Connections that were dropped before they proved the secret.
  uint64_t strangers() const { return strangers_.load(std::memory_order_relaxed); }

 private:
  enum class Stage { Opening, Joining, Member, Farewell };
  struct Piece {
    std::shared_ptr<const Bytes> bytes;
    size_t sent = 0;
  };
  struct Connection {
    Socket socket;
    std::string from;
    Stage stage = Stage::Opening;
    Clock::time_point since;
    Clock::time_point deadline;  // not for Member
    Bytes hello;                 // what has come of the handshake's current message
    Nonces nonces;
    int rank = -1;
    std::optional<FrameReader> reader;
    std::optional<FrameWriter> writer;
    std::deque<Piece> output;
    bool outputEnded = false;
  };

  explicit RootService(RootOptions options);
  void run();
  bool done(Clock::time_point now);
  int pollTimeoutMs(Clock::time_point now) const;
  void pollOnce();
  void checkDeadlines(Clock::time_point now);

  void accept(const Socket& listener);
  void acceptFailed(int errnum);
  Error withShortage(Error error) const;
  bool makeRoom(Clock::time_point now);
  Connection* oldestUnproven();
  size_t unproven() const;
  void dropStranger(Connection& connection, const char* why);

  void readFrom(Connection& connection);
  void readHello(Connection& connection);
  void readFrames(Connection& connection);
  void handleOpen(Connection& connection);
  void handleJoin(Connection& connection);
  void handleFrame(Connection& connection, Frame frame);
  void lost(Connection& connection);

  void startMembership(Connection& connection);
  void welcomeAll();
  std::vector<Connection*> membersInOrder() const;
  void closeDoor();
  void sendTable();
  void fail(Error error);
  void tellFailure(Connection& connection);

  void queue(Connection& connection, std::shared_ptr<const Bytes> bytes);
  void flush(Connection& connection);
  void shortenDeadline(int64_t leftMs, Clock::time_point now);

  RootOptions options_;
  Socket wake_;  // an eventfd: readable once stop is wanted
  // Given up when descriptors have run out: with this one the ranks at the door are let in, one after the
  // other, and told so.
  Socket reserve_;
  std::string shortage_;  // what ran out at the door, and what to raise; empty: nothing did
  std::vector<std::unique_ptr<Connection>> connections_;
  Roster roster_;
  std::optional<Error> failure_;
  size_t told_ = 0;                // ranks that were sent the failure
  Clock::time_point lingerUntil_;  // with failure_: until then late ranks are told of it
  Clock::time_point acceptPausedUntil_;
  Clock::time_point deadline_;  // of joining, then of the exchange that is going on
  int64_t deadlineWaitMs_ = 0;  // the wait that ends at deadline_
  std::optional<Clock::time_point> stopBy_;

  std::atomic<uint64_t> strangers_{0};
  std::atomic<bool> doorOpen_{true};   // cleared by the thread with its listeners, read by doorOpen()
  std::atomic<bool> finished_{false};  // stored by the thread as its last act, read by finished()
  std::thread thread_;
};

enum class RootUse { UniqueId, Launch };

// Keeps a service until it has finished. What is left when the process exits is ended then; in a forked child
// that inherited it, it is left alone.
void hostRoot(std::unique_ptr<RootService> service, RootUse use);

// Ends the launch's services of this process that still let ranks in: their rendezvous has failed, and the
// next one wants the same address.
void endLaunchRoots();

}  // namespace peal

// Ranks of a test of the verbs fabric: threads with a fabric each, and the control plane between them. The
// same for the fake library and for the real one in a virtual machine.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "tests/support/exchange.h"
#include "tests/support/limits.h"
#include "transports/verbs/fabric.h"

namespace peal::test {

inline constexpr int kRankLimitMs = kFarMs;

// Small messages between ranks, in order.
class Switchboard {
 public:
  explicit Switchboard(int size) : inboxes_(static_cast<size_t>(size)) {}
  void put(int to, int from, std::span<const std::byte> message) {
    const std::lock_guard lock(mutex_);
    inboxes_[static_cast<size_t>(to)].emplace_back(from,
                                                   std::vector<std::byte>(message.begin(), message.end()));
  }
  std::atomic<int> arrived{0};         // at meetings
  std::atomic<bool> abandoned{false};  // a rank gave up: nobody need wait for it
  bool take(int rank, std::pair<int, std::vector<std::byte>>& letter) {
    const std::lock_guard lock(mutex_);
    auto& inbox = inboxes_[static_cast<size_t>(rank)];
    if (inbox.empty()) {
      return false;
    }
    letter = std::move(inbox.front());
    inbox.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<std::deque<std::pair<int, std::vector<std::byte>>>> inboxes_;
};

class RankControl final : public ControlPlane {
 public:
  RankControl(Switchboard& board, int rank) : board_(board), rank_(rank) {}
  void send(int peerRank, std::span<const std::byte> message) override {
    EXPECT_LE(message.size(), 4096U);
    board_.put(peerRank, rank_, message);
  }

 private:
  Switchboard& board_;
  const int rank_;
};

// One rank, connected or not.
struct FabricRank {
  int rank = 0;
  int size = 0;
  Exchange& exchange;
  Switchboard& board;
  std::unique_ptr<Fabric> fabric;
  Result<void> connected;

  Link& link(int peer) const { return fabric->link(peer); }
  void pump() const {
    std::pair<int, std::vector<std::byte>> letter;
    while (board.take(rank, letter)) {
      fabric->onControl(letter.first, letter.second);
    }
    fabric->poll();
  }
  // Until the condition holds. False: the deadline, or a fault of the fabric.
  bool waitUntil(const std::function<bool()>& condition, int limitMs = kRankLimitMs) const {
    const Deadline deadline = Deadline::afterMs(limitMs);
    for (;;) {
      pump();
      if (condition()) {
        return true;
      }
      if (fabric->fault() || deadline.passed() || board.abandoned) {
        return false;
      }
      std::this_thread::yield();
    }
  }
  // All ranks meet, each moving its fabric on meanwhile.
  void meet() {
    const int target = ++meetings * size;
    ++board.arrived;
    EXPECT_TRUE(waitUntil([&] { return board.arrived.load() >= target; }));
  }
  int meetings = 0;
};

using OpenFabric = std::function<Result<std::unique_ptr<Fabric>>(int rank)>;
using FabricBody = std::function<void(FabricRank&)>;

// Runs body on `size` ranks that are peers of each other; connect() has been called, with what result the
// body sees. The fabric ends after all bodies have ended; rank by rank, as they like.
inline void runFabrics(int size, const OpenFabric& open, const FabricBody& body,
                       int connectLimitMs = kRankLimitMs) {
  ExchangeBoard exchangeBoard(size);
  Switchboard board(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      BoardExchange exchange(exchangeBoard, rank);
      RankControl control(board, rank);
      FabricRank self{rank, size, exchange, board, nullptr, {}};
      Result<std::unique_ptr<Fabric>> fabric = open(rank);
      ASSERT_TRUE(fabric) << fabric.error().message;
      self.fabric = std::move(*fabric);
      std::vector<int> peers;
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) {
          peers.push_back(peer);
        }
      }
      self.connected = self.fabric->connect(exchange, peers, control, Deadline::afterMs(connectLimitMs));
      body(self);
      self.fabric.reset();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Bytes that say from whom and which message they are.
inline std::byte byteOf(int srcRank, int number, size_t index) {
  return static_cast<std::byte>(
      (static_cast<size_t>(srcRank) * 131 + static_cast<size_t>(number) * 31 + index * 7) >> 1);
}

inline Digest numberedDigest(int number) {
  Digest digest;
  digest.sequence = static_cast<uint32_t>(number) * 2654435761U;
  digest.count = static_cast<uint64_t>(number) + 1;
  return digest;
}

// A stream of messages in one direction of a link, sent or checked as far as it goes at each step.
class Stream {
 public:
  Stream(int srcRank, int count, size_t slotBytes)
      : srcRank_(srcRank), count_(count), slotBytes_(slotBytes) {}
  bool done() const { return number_ == count_; }
  int number() const { return number_; }
  // 0, 1, odd, around a slot.
  size_t bytesOf(int number) const {
    const size_t sizes[] = {slotBytes_, 0, 1, 63, 64, 65, 137, 997, slotBytes_ - 1, slotBytes_ / 2 + 1};
    return std::min(sizes[static_cast<size_t>(number) % std::size(sizes)], slotBytes_);
  }
  void send(Link& link) {
    while (!done()) {
      const size_t bytes = bytesOf(number_);
      std::byte* slot = link.tryStage(bytes);
      if (slot == nullptr) {
        return;
      }
      for (size_t i = 0; i < bytes; ++i) {
        slot[i] = byteOf(srcRank_, number_, i);
      }
      link.post(bytes, numberedDigest(number_));
      ++number_;
    }
  }
  void receive(Link& link) {
    Arrival arrival;
    while (!done() && link.tryReceive(arrival)) {
      const size_t bytes = bytesOf(number_);
      ASSERT_EQ(arrival.bytes, bytes) << "message " << number_;
      ASSERT_EQ(arrival.digest, numberedDigest(number_)) << "message " << number_;
      size_t wrong = 0;
      for (size_t i = 0; i < bytes; ++i) {
        wrong += arrival.data[i] != byteOf(srcRank_, number_, i) ? 1 : 0;
      }
      ASSERT_EQ(wrong, 0U) << "message " << number_ << " of " << bytes << " bytes";
      link.release();
      ++number_;
    }
  }

 private:
  const int srcRank_;
  const int count_;
  const size_t slotBytes_;
  int number_ = 0;
};

// `count` messages each way between this rank and every other, all at once. False: a fault or the deadline.
inline bool exchangeStreams(const FabricRank& self, int count, size_t slotBytes, int limitMs = kRankLimitMs) {
  std::vector<Stream> out;
  std::vector<Stream> in;
  for (int peer = 0; peer < self.size; ++peer) {
    out.emplace_back(self.rank, peer == self.rank ? 0 : count, slotBytes);
    in.emplace_back(peer, peer == self.rank ? 0 : count, slotBytes);
  }
  return self.waitUntil(
      [&] {
        bool done = true;
        for (int peer = 0; peer < self.size; ++peer) {
          if (peer == self.rank) {
            continue;
          }
          out[static_cast<size_t>(peer)].send(self.link(peer));
          in[static_cast<size_t>(peer)].receive(self.link(peer));
          done = done && out[static_cast<size_t>(peer)].done() && in[static_cast<size_t>(peer)].done();
        }
        return (done && self.fabric->settled()) || ::testing::Test::HasFatalFailure();
      },
      limitMs);
}

}  // namespace peal::test

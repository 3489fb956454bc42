// The roster of a rendezvous: who has joined, who has given a blob, and the sentence when something is wrong.
//
// Pure: no sockets, no clock, no threads. Owned by the root service, which acts on what it answers. Ranks
// that reach it have proved the secret, but what they say is still checked.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/bootstrap/bytes.h"

namespace peal {

// "rank 2", "ranks 2 and 5", "ranks 2, 5 and 7", "ranks 0, 1, … and 40 more".
std::string rankList(const std::vector<int>& ranks);

class Roster {
 public:
  // An error is for every rank, not only for the one that asked.
  Result<void> join(uint32_t rank, uint32_t size, const std::string& from);
  bool complete() const { return size_ > 0 && joined_ == size_; }
  bool started() const { return size_ > 0; }
  int size() const { return size_; }

  // One blob of a rank for the exchange that is going on.
  Result<void> contribute(int rank, Bytes blob);
  bool gathered() const { return size_ > 0 && given_ == size_; }
  bool gathering() const { return given_ > 0; }
  // The table's frame body; the next exchange begins.
  Bytes takeTable();

  // A rank has left. In good order it is only missed by the next exchange.
  void leave(int rank);
  // A rank that left although it has not given its blob to the exchange in which `given` others wait.
  std::optional<Error> departure() const;

  // Why the deadline passed.
  Error joinTimeout(int64_t waitedMs) const;
  Error exchangeTimeout(int64_t waitedMs) const;
  Error diedJoining(int rank) const;

 private:
  struct Seat {
    bool joined = false;
    bool left = false;
    std::string from;
    std::optional<Bytes> blob;
  };
  std::vector<int> ranksWhere(bool (*wanted)(const Seat&)) const;

  std::vector<Seat> seats_;
  int size_ = 0;
  int firstRank_ = 0;  // whose word on the size came first
  int joined_ = 0;
  int given_ = 0;
  uint64_t exchange_ = 0;
};

}  // namespace peal

#include "algorithms/record/simulator.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

namespace peal::record {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Simulator {
 public:
  Simulator(const Program& program, const NetworkModel& model)
      : program_(program),
        model_(model),
        ranks_(program.operation.ranks),
        nodes_(program.operation.grouping()),
        sharesNodes_(program.operation.nodes.ranks != 0),
        links_(static_cast<size_t>(ranks_) * ranks_),
        at_(ranks_, 0),
        nowUs_(ranks_, 0),
        holding_(ranks_),
        // Ranks' own ways, then those of nodes.
        outFreeUs_(2 * static_cast<size_t>(ranks_), 0),
        inFreeUs_(2 * static_cast<size_t>(ranks_), 0) {}

  // Always does what comes first, so that ways are taken in the order of asking.
  std::vector<double> run() {
    for (;;) {
      int first = -1;
      double firstUs = kNever;
      for (int rank = 0; rank < ranks_; ++rank) {
        const double us = startUs(rank);
        if (us < firstUs) {
          first = rank;
          firstUs = us;
        }
      }
      if (!onTheWay_.empty() && onTheWay_.top().arrivesUs <= firstUs) {
        comeIn();
      } else if (first >= 0) {
        execute(first, firstUs);
      } else {
        return nowUs_;
      }
    }
  }

 private:
  struct LinkTimes {
    size_t sent = 0;
    std::vector<double> arrivedUs;   // of each message that is in
    std::vector<double> releasedUs;  // of each message received
  };

  // A message between the sender's way out and the receiver's way in.
  struct Flight {
    double arrivesUs;
    size_t number;  // among equals the one sent first
    int from;
    int to;
    double passesUs;
    bool operator>(const Flight& other) const {
      return arrivesUs != other.arrivesUs ? arrivesUs > other.arrivesUs : number > other.number;
    }
  };

  // The terms of a rank's next sum, and whose slots it will give back.
  struct Holding {
    int terms = 0;
    std::vector<int> peers;
  };

  LinkTimes& link(int from, int to) { return links_[static_cast<size_t>(from) * ranks_ + to]; }

  // The k-th peer after this rank: sends to all go out in this order, as staggeredPeer's do.
  int peerAfter(int rank, int k) const { return (rank + k) % ranks_; }

  double messageUs(int from, int to) {
    const LinkTimes& times = link(from, to);
    const size_t next = times.releasedUs.size();
    return next < times.arrivedUs.size() ? times.arrivedUs[next] : kNever;
  }

  double creditUs(int from, int to) {
    const LinkTimes& times = link(from, to);
    const size_t slots = static_cast<size_t>(model_.slots);
    if (times.sent < slots) {
      return 0;
    }
    return times.sent - slots < times.releasedUs.size() ? times.releasedUs[times.sent - slots] : kNever;
  }

  // When the rank's next step has what it waits for; kNever if that is not known yet, or nothing is left.
  double startUs(int rank) {
    if (at_[rank] == program_.ranks[rank].size()) {
      return kNever;
    }
    const Step& step = program_.ranks[rank][at_[rank]];
    const unsigned bits = parts(step.verb);
    double us = nowUs_[rank];
    if ((bits & kFromOne) != 0) {
      us = std::max(us, messageUs(step.from, rank));
    }
    if ((bits & kToOne) != 0) {
      us = std::max(us, creditUs(rank, step.to));
    }
    for (int k = 1; (bits & (kFromAll | kToAll)) != 0 && k < ranks_; ++k) {
      const int peer = peerAfter(rank, k);
      us = std::max(us, (bits & kFromAll) != 0 ? messageUs(peer, rank) : creditUs(rank, peer));
    }
    return us;
  }

  void execute(int rank, double us) {
    const Step& step = program_.ranks[rank][at_[rank]++];
    const unsigned bits = parts(step.verb);
    const double count = static_cast<double>(step.chunk.count);
    const bool fromAll = (bits & kFromAll) != 0;
    Holding& holding = holding_[rank];
    if ((bits & kHolds) != 0) {
      nowUs_[rank] = us;
      ++holding.terms;
      if ((bits & kFromOne) != 0) {
        holding.peers.push_back(step.from);
      }
      return;
    }
    if ((bits & kSums) != 0) {
      us += model_.gammaUsPerElement * count * (holding.terms - 1);
    } else if ((bits & kUsesIn) != 0 && (bits & (kFromOne | kFromAll)) != 0) {
      us += model_.gammaUsPerElement * count * (fromAll ? ranks_ - 1 : 1);
    }
    nowUs_[rank] = us;
    if ((bits & kFromOne) != 0) {
      link(step.from, rank).releasedUs.push_back(us);
    }
    if ((bits & kSums) != 0) {
      for (const int peer : holding.peers) {
        link(peer, rank).releasedUs.push_back(us);
      }
      holding = {};
    }
    if ((bits & kToOne) != 0) {
      transmit(rank, step.to, count, us);
    }
    for (int k = 1; (bits & (kFromAll | kToAll)) != 0 && k < ranks_; ++k) {
      const int peer = peerAfter(rank, k);
      if (fromAll) {
        link(peer, rank).releasedUs.push_back(us);
      } else {
        transmit(rank, peer, count, us);
      }
    }
  }

  // Leaves when the way out is free.
  void transmit(int from, int to, double count, double us) {
    const bool across = crosses(from, to);
    const double leavesUs = std::max(us, outFreeUs_[wayOf(from, across)]);
    const double passesUs = (across ? model_.between.betaUsPerElement : model_.betaUsPerElement) * count;
    outFreeUs_[wayOf(from, across)] = leavesUs + passesUs;
    onTheWay_.push(
        {leavesUs + (across ? model_.between.alphaUs : model_.alphaUs), messages_++, from, to, passesUs});
    ++link(from, to).sent;
  }

  bool crosses(int from, int to) const { return sharesNodes_ && !nodes_.sameNode(from, to); }
  size_t wayOf(int rank, bool across) const {
    return static_cast<size_t>(across ? ranks_ + nodes_.node(rank) : rank);
  }

  // The message that arrives first passes the way in as soon as that is free.
  void comeIn() {
    const Flight flight = onTheWay_.top();
    onTheWay_.pop();
    double& freeUs = inFreeUs_[wayOf(flight.to, crosses(flight.from, flight.to))];
    freeUs = std::max(flight.arrivesUs, freeUs) + flight.passesUs;
    link(flight.from, flight.to).arrivedUs.push_back(freeUs);
  }

  const Program& program_;
  const NetworkModel& model_;
  int ranks_;
  Grouping nodes_;
  bool sharesNodes_;
  std::vector<LinkTimes> links_;
  std::vector<size_t> at_;
  std::vector<double> nowUs_;
  std::vector<Holding> holding_;
  std::vector<double> outFreeUs_;
  std::vector<double> inFreeUs_;
  std::priority_queue<Flight, std::vector<Flight>, std::greater<>> onTheWay_;
  size_t messages_ = 0;
};

}  // namespace

std::vector<double> simulate(const Program& program, const NetworkModel& model) {
  return Simulator(program, model).run();
}

}  // namespace peal::record

// Making the links of a fabric: ranks tell each other their ports and queue pairs, connect them, and try each
// one with a ping. Lives for the length of connect().
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transports/verbs/link.h"

namespace peal::verbs {

// Which port of this rank talks to which of the peer: each once, in order of the rank that comes first, same
// subnet before any that may be routed. Both sides compute the same pairs. Indices (first, second).
std::vector<std::pair<size_t, size_t>> pairPorts(const std::vector<PortAddress>& first,
                                                 const std::vector<PortAddress>& second);

class Connector {
 public:
  Connector(Station& station, std::vector<std::unique_ptr<VerbsLink>>& links, Exchange& exchange,
            Deadline deadline, std::function<void()> takeCompletions)
      : station_(station),
        links_(links),
        exchange_(exchange),
        deadline_(deadline),
        takeCompletions_(std::move(takeCompletions)) {}

  Result<void> run(const std::vector<int>& peers);

 private:
  using Blob = std::vector<std::byte>;

  // Every rank's blob behind a byte that says whether it failed so far. A rank that failed says why in place
  // of its blob; then all fail, each with its own error first.
  Result<std::vector<Blob>> share(const Result<Blob>& mine);
  Result<void> together(const Result<void>& mine);

  Result<Blob> prepare(const std::vector<int>& peers);
  Result<void> readPorts(const std::vector<Blob>& blobs, const std::vector<int>& peers);
  Result<void> makeLinks(const std::vector<int>& peers);
  Result<void> exchangePairs(const Result<void>& before);
  Result<void> connectPairs();
  Result<void> pingAll();

  Station& station_;
  std::vector<std::unique_ptr<VerbsLink>>& links_;
  Exchange& exchange_;
  const Deadline deadline_;
  const std::function<void()> takeCompletions_;
  std::vector<std::vector<PortAddress>> ports_;  // by rank
  // Of each link's lanes: the peer's queue pairs.
  struct PeerPair {
    uint32_t number = 0;
    uint32_t firstPacket = 0;
  };
  std::vector<std::vector<PeerPair>> peerPairs_;
};

}  // namespace peal::verbs

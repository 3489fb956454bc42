#include "transports/verbs/connect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <thread>

namespace peal::verbs {
namespace {

constexpr size_t kMostLanes = 64;  // WorkOwner's field
constexpr size_t kMostBlobBytes = 60000;

// ---- bytes of blobs: ranks of one build, so plain structs as they are ----

void appendBytes(std::vector<std::byte>& blob, std::span<const std::byte> bytes) {
  const size_t at = blob.size();
  blob.resize(at + bytes.size());
  if (!bytes.empty()) {
    std::memcpy(blob.data() + at, bytes.data(), bytes.size());
  }
}

template <class T>
void append(std::vector<std::byte>& blob, const T& value) {
  appendBytes(blob, std::as_bytes(std::span(&value, 1)));
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T>
  bool read(T& value) {
    if (left_.size() < sizeof value) {
      return false;
    }
    std::memcpy(&value, left_.data(), sizeof value);
    left_ = left_.subspan(sizeof value);
    return true;
  }
  bool empty() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

// What ranks must agree on.
struct Terms {
  uint64_t slotBytes = 0;
  int32_t slots = 0;
  int32_t queuePairs = 0;
  uint32_t ports = 0;
  uint32_t unused = 0;
};

// A link's queue pairs, as its owner made them; `lanes` entries of PeerPair follow.
struct LinkEntry {
  int32_t fromRank = 0;
  int32_t toRank = 0;
  uint64_t slotsAddress = 0;
  uint32_t lanes = 0;
  uint32_t unused = 0;
};

PortAddress addressOf(const Rail& rail, const Station& station) {
  PortAddress address;
  address.gid = rail.gid.gid;
  address.rkey = station.incoming.on(*rail.device).rkey();
  address.lid = rail.lid;
  address.linkLayer = rail.linkLayer;
  address.gidType = static_cast<uint8_t>(rail.gid.type);
  address.mtu = static_cast<uint8_t>(rail.mtu);
  address.subnetBits =
      static_cast<uint8_t>(rail.linkLayer == IBV_LINK_LAYER_ETHERNET ? subnetBits(rail.gid.gid) : 64);
  const std::string name = rail.name();
  std::memcpy(address.name, name.data(), std::min(name.size(), sizeof address.name - 1));
  return address;
}

std::string nameOf(const PortAddress& port) {
  return fmt::format("{} ({}{})", port.name, gidText(port.gid),
                     port.linkLayer == IBV_LINK_LAYER_ETHERNET
                         ? fmt::format(", {}", gidTypeText(port.gidType))
                         : fmt::format(", LID {}", port.lid));
}

std::string listPorts(const std::vector<PortAddress>& ports) {
  std::string text;
  for (const PortAddress& port : ports) {
    text += (text.empty() ? "" : ", ") + nameOf(port);
  }
  return text;
}

bool sameSubnet(const PortAddress& a, const PortAddress& b) {
  return a.subnetBits == b.subnetBits && inSubnet(b.gid, Subnet{a.gid, a.subnetBits});
}

// Whether packets of one can reach the other at all. InfiniBand's stay in their subnet; those of RoCE may be
// routed, if both speak the same version.
bool compatible(const PortAddress& a, const PortAddress& b) {
  return a.linkLayer == b.linkLayer && a.gidType == b.gidType &&
         (a.linkLayer == IBV_LINK_LAYER_ETHERNET || sameSubnet(a, b));
}

}  // namespace

std::vector<std::pair<size_t, size_t>> pairPorts(const std::vector<PortAddress>& first,
                                                 const std::vector<PortAddress>& second) {
  std::vector<std::pair<size_t, size_t>> pairs;
  std::vector<bool> taken(second.size());
  std::vector<bool> placed(first.size());
  for (const bool near : {true, false}) {
    for (size_t i = 0; i < first.size(); ++i) {
      for (size_t j = 0; j < second.size() && !placed[i]; ++j) {
        if (!taken[j] && compatible(first[i], second[j]) && (!near || sameSubnet(first[i], second[j]))) {
          taken[j] = true;
          placed[i] = true;
          pairs.emplace_back(i, j);
        }
      }
    }
  }
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

Result<void> Connector::run(const std::vector<int>& peers) {
  const Result<std::vector<Blob>> ports = share(prepare(peers));
  if (!ports) {
    return ports.error();
  }
  Result<void> made = readPorts(*ports, peers);
  if (made) {
    made = makeLinks(peers);
  }
  PEAL_TRY(exchangePairs(made));
  PEAL_TRY(together(connectPairs()));  // nobody pings before all can receive
  PEAL_TRY(together(pingAll()));
  for (const std::unique_ptr<VerbsLink>& link : links_) {
    link->open();
  }
  return {};
}

// ---- together ----

Result<std::vector<Connector::Blob>> Connector::share(const Result<Blob>& mine) {
  Blob blob(1, mine ? std::byte{1} : std::byte{0});
  if (mine) {
    appendBytes(blob, *mine);
  } else {
    const std::string text = mine.error().message.substr(0, 2000);
    appendBytes(blob, std::as_bytes(std::span(text)));
  }
  Result<std::vector<Blob>> all = exchange_.allGather(blob);
  if (!mine) {
    return mine.error();
  }
  if (!all) {
    return all.error();
  }
  for (size_t rank = 0; rank < all->size(); ++rank) {
    Blob& theirs = (*all)[rank];
    if (theirs.empty() || theirs.front() != std::byte{1}) {
      const std::string text(reinterpret_cast<const char*>(theirs.data()) + (theirs.empty() ? 0 : 1),
                             theirs.empty() ? 0 : theirs.size() - 1);
      return Error{pealRemoteError, fmt::format("rank {}: {}", rank, text)};
    }
    theirs.erase(theirs.begin());
  }
  return all;
}

Result<void> Connector::together(const Result<void>& mine) {
  const Result<std::vector<Blob>> all = share(mine ? Result<Blob>(Blob{}) : Result<Blob>(mine.error()));
  return all ? Result<void>{} : Result<void>(all.error());
}

// ---- ports ----

Result<Connector::Blob> Connector::prepare(const std::vector<int>& peers) {
  const size_t bytes = std::max(peers.size(), size_t{1}) * station_.linkBytes();
  Result<PinnedMemory> outgoing = PinnedMemory::make(station_.devices, bytes, /*access=*/0);
  if (!outgoing) {
    return outgoing.error();
  }
  Result<PinnedMemory> incoming =
      PinnedMemory::make(station_.devices, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (!incoming) {
    return incoming.error();
  }
  station_.outgoing = std::move(*outgoing);
  station_.incoming = std::move(*incoming);
  Blob blob;
  append(blob, Terms{station_.options.fabric.slotBytes, station_.options.fabric.slots,
                     station_.options.queuePairs, static_cast<uint32_t>(station_.rails.size())});
  for (const Rail& rail : station_.rails) {
    append(blob, addressOf(rail, station_));
  }
  return blob;
}

Result<void> Connector::readPorts(const std::vector<Blob>& blobs, const std::vector<int>& peers) {
  ports_.resize(blobs.size());
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    Reader reader(blobs[rank]);
    Terms terms;
    if (!reader.read(terms) || terms.ports > 256) {
      return Error{pealRemoteError, fmt::format("rank {} offers verbs in a form unknown here", rank)};
    }
    if (terms.slotBytes != station_.options.fabric.slotBytes ||
        terms.slots != station_.options.fabric.slots || terms.queuePairs != station_.options.queuePairs) {
      return Error{
          pealInvalidUsage,
          fmt::format("rank {} has {} slots of {} bytes and {} queue pairs, rank {} has {} of {} and {}: "
                      "PEAL_SLOTS, PEAL_SLOT_BYTES and PEAL_IB_QUEUE_PAIRS must be the same on all ranks",
                      rank, terms.slots, terms.slotBytes, terms.queuePairs, station_.rank,
                      station_.options.fabric.slots, station_.options.fabric.slotBytes,
                      station_.options.queuePairs)};
    }
    for (uint32_t i = 0; i < terms.ports; ++i) {
      PortAddress port;
      if (!reader.read(port)) {
        return Error{pealRemoteError, fmt::format("rank {}'s list of ports is cut off", rank)};
      }
      port.name[sizeof port.name - 1] = '\0';
      port.subnetBits = std::min<uint8_t>(port.subnetBits, 128);
      ports_[rank].push_back(port);
    }
  }
  if (peers.size() > 65535) {
    return Error{pealInvalidUsage, fmt::format("verbs serves at most 65535 peers, not {}", peers.size())};
  }
  return {};
}

// ---- queue pairs ----

Result<void> Connector::makeLinks(const std::vector<int>& peers) {
  const auto mine = static_cast<size_t>(station_.rank);
  size_t lanes = 0;
  for (size_t index = 0; index < peers.size(); ++index) {
    const auto theirs = static_cast<size_t>(peers[index]);
    links_.push_back(std::make_unique<VerbsLink>(station_, peers[index], static_cast<uint16_t>(index)));
    std::vector<Lane>& made = links_.back()->lanes();
    const bool first = mine < theirs;
    // Lanes are numbered alike on both sides: port pairs inside, so that neighbours use different rails.
    const auto pairs =
        first ? pairPorts(ports_[mine], ports_[theirs]) : pairPorts(ports_[theirs], ports_[mine]);
    for (int turn = 0; turn < station_.options.queuePairs; ++turn) {
      for (const auto& [a, b] : pairs) {
        if (made.size() < kMostLanes) {
          Lane& lane = made.emplace_back();
          lane.rail = station_.rails[first ? a : b];
          lane.peerPort = first ? b : a;
          lane.peer = ports_[theirs][lane.peerPort];
        }
      }
    }
    if (made.empty()) {
      return Error{
          pealSystemError,
          fmt::format("no port of rank {} can reach one of rank {} over verbs: {} and {}. They must be of "
                      "one kind: the same InfiniBand subnet, or the same version of RoCE "
                      "(PEAL_IB_DEVICES, PEAL_IB_GID_TYPE, PEAL_IB_GID_SUBNET).",
                      station_.rank, peers[index], listPorts(ports_[mine]), listPorts(ports_[theirs]))};
    }
    lanes += made.size();
  }
  for (const std::unique_ptr<Device>& device : station_.devices) {
    const size_t entries = std::max<size_t>(lanes * completionsPerLane(station_.options), 16);
    PEAL_TRY(device->makeQueue(static_cast<int>(entries)));
  }
  for (const std::unique_ptr<VerbsLink>& link : links_) {
    for (size_t lane = 0; lane < link->lanes().size(); ++lane) {
      PEAL_TRY(link->makePair(lane));
    }
  }
  return {};
}

// A blob holds 64 KiB, so many peers take several rounds; all ranks go on while any has more.
Result<void> Connector::exchangePairs(const Result<void>& before) {
  peerPairs_.resize(links_.size());
  Result<void> status = before;
  size_t next = 0;
  for (bool more = true; more;) {
    Blob blob(1);  // whether more follows
    for (; status && next < links_.size(); ++next) {
      VerbsLink& link = *links_[next];
      if (blob.size() + sizeof(LinkEntry) + link.lanes().size() * sizeof(PeerPair) > kMostBlobBytes) {
        blob.front() = std::byte{1};
        break;
      }
      append(blob, LinkEntry{station_.rank, link.peerRank(), reinterpret_cast<uint64_t>(link.incomingSlots()),
                             static_cast<uint32_t>(link.lanes().size())});
      for (const Lane& lane : link.lanes()) {
        append(blob, PeerPair{lane.pair->number(), lane.pair->firstPacket()});
      }
    }
    const Result<std::vector<Blob>> all = share(status ? Result<Blob>(blob) : Result<Blob>(status.error()));
    if (!all) {
      return all.error();
    }
    more = false;
    for (const Blob& theirs : *all) {
      Reader reader(theirs);
      uint8_t continued = 0;
      LinkEntry entry;
      reader.read(continued);
      more = more || continued != 0;
      while (reader.read(entry)) {
        std::vector<PeerPair> pairs(std::min<size_t>(entry.lanes, kMostLanes));
        for (PeerPair& pair : pairs) {
          reader.read(pair);
        }
        const auto link =
            entry.toRank == station_.rank
                ? std::find_if(links_.begin(), links_.end(),
                               [&](const auto& candidate) { return candidate->peerRank() == entry.fromRank; })
                : links_.end();
        if (link != links_.end()) {
          peerPairs_[static_cast<size_t>(link - links_.begin())] = std::move(pairs);
          (*link)->setPeerSlots(entry.slotsAddress);
        }
      }
    }
  }
  return status;
}

Result<void> Connector::connectPairs() {
  for (size_t index = 0; index < links_.size(); ++index) {
    VerbsLink& link = *links_[index];
    std::vector<Lane>& lanes = link.lanes();
    if (peerPairs_[index].size() != lanes.size()) {
      return Error{pealRemoteError,
                   fmt::format("rank {} made {} queue pairs for rank {}, which expects {}", link.peerRank(),
                               peerPairs_[index].size(), station_.rank, lanes.size())};
    }
    for (size_t i = 0; i < lanes.size(); ++i) {
      PEAL_TRY(lanes[i].pair->connect(lanes[i].peer, peerPairs_[index][i].number,
                                      peerPairs_[index][i].firstPacket, station_.options));
    }
  }
  return {};
}

// A queue pair that does not carry one message now would fail in the first operation, with a worse sentence.
Result<void> Connector::pingAll() {
  for (const std::unique_ptr<VerbsLink>& link : links_) {
    for (Lane& lane : link->lanes()) {
      link->ping(lane);
    }
  }
  const int limitMs = std::min(station_.options.pingLimitMs, deadline_.leftMs());
  const Deadline limit = Deadline::afterMs(limitMs);
  std::string failures;
  for (bool waiting = true; waiting;) {
    waiting = false;
    failures.clear();
    takeCompletions_();
    for (const std::unique_ptr<VerbsLink>& link : links_) {
      for (const Lane& lane : link->lanes()) {
        const bool failed = !lane.reason.empty();
        const bool works = lane.pingAcknowledged && lane.pingSeen;
        waiting = waiting || (!failed && !works);
        if (failed || !works) {
          failures +=
              fmt::format("{}rank {} {} to rank {} {}: {}", failures.empty() ? "" : "; ", station_.rank,
                          nameOf(addressOf(lane.rail, station_)), link->peerRank(), nameOf(lane.peer),
                          failed                  ? lane.reason
                          : lane.pingAcknowledged ? "the peer's ping did not arrive"
                                                  : "no answer");
        }
      }
    }
    if (waiting && limit.passed()) {
      break;
    }
    std::this_thread::yield();
  }
  if (!failures.empty()) {
    return Error{
        pealSystemError,
        fmt::format("queue pairs of verbs do not carry a ping within {} ms: {}. Check that the ports are "
                    "cabled to one fabric and that its routes and, for RoCE, the firewall (UDP port 4791) "
                    "let them through; leave a port out with PEAL_IB_DEVICES=^name.",
                    limitMs, failures)};
  }
  return {};
}

}  // namespace peal::verbs

// Making communicators: what all ranks must agree on is exchanged and compared before links are made.
#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "lib/base/config.h"
#include "lib/base/cpu.h"
#include "lib/base/node.h"
#include "lib/comm/communicator.h"
#include "lib/comm/host_links.h"
#include "lib/comm/measure.h"
#include "lib/tuner/device_costs.h"

namespace peal {
namespace {

// An active communicator's staging memory stays below this, but for what enlarged() makes of the slots of
// ranks that are apart; slots shrink when there are many ranks.
constexpr size_t kStagingMostBytes = size_t{8} << 20;
constexpr size_t kSlotLeastBytes = 4096;

// What every rank tells the others. Fixed size; the same layout on every rank of one version, which is
// compared first.
struct Announcement {
  int32_t version = PEAL_VERSION_CODE;
  int32_t deterministic = 0;
  uint64_t slotBytes = 0;
  int32_t slots = 0;
  char algorithm[20] = {};
  int32_t onDevice = 0;
  int32_t channels = 0;
  int64_t deviceBufferBytes = 0;
  char protocol[8] = {};
  char transport[8] = {};
  NodeIdentity node{};
};

size_t slotBytesFor(int size) {
  const auto wanted = static_cast<size_t>(configuration()->integer(Knob::SlotBytes));
  if (!configuration()->isDefault(Knob::SlotBytes) || size < 2) {
    return wanted;
  }
  // One set of slots per peer, and one that goes to all.
  const size_t fits = kStagingMostBytes / static_cast<size_t>(configuration()->integer(Knob::Slots)) /
                      static_cast<size_t>(size);
  return std::clamp(fits / 64 * 64, kSlotLeastBytes, wanted);
}

Announcement announcementOf(const CommOptions& options, int size) {
  Announcement mine;
  mine.deterministic = options.deterministic ? 1 : 0;
  // On GPUs "not set" is as much as fits, and no size.
  const bool fitted = options.device != PEAL_DEVICE_HOST && configuration()->isDefault(Knob::SlotBytes);
  mine.slotBytes = fitted ? 0 : slotBytesFor(size);
  mine.slots = static_cast<int32_t>(configuration()->integer(Knob::Slots));
  const std::string& algorithm = configuration()->text(Knob::Algorithm);
  std::memcpy(mine.algorithm, algorithm.data(), std::min(algorithm.size(), sizeof mine.algorithm - 1));
  mine.onDevice = options.device != PEAL_DEVICE_HOST ? 1 : 0;
  mine.channels = static_cast<int32_t>(configuration()->integer(Knob::Channels));
  mine.deviceBufferBytes = configuration()->integer(Knob::DeviceBufferBytes);
  const std::string& protocol = configuration()->text(Knob::Protocol);
  std::memcpy(mine.protocol, protocol.data(), std::min(protocol.size(), sizeof mine.protocol - 1));
  const std::string& transport = configuration()->text(Knob::Transport);
  std::memcpy(mine.transport, transport.data(), std::min(transport.size(), sizeof mine.transport - 1));
  mine.node = nodeIdentity();
  return mine;
}

// The first thing that two ranks disagree on, as a sentence; empty if nothing.
std::string difference(const Announcement& a, int rankA, const Announcement& b, int rankB) {
  const auto sentence = [&](const char* what, const auto& x, const auto& y) {
    return fmt::format("{} is {} on rank {} and {} on rank {}; it must be the same on all ranks.", what, x,
                       rankA, y, rankB);
  };
  if (a.version != b.version) {
    return sentence("the version of peal", a.version, b.version);
  }
  if (a.deterministic != b.deterministic) {
    return sentence("the deterministic option (PEAL_DETERMINISTIC)", a.deterministic, b.deterministic);
  }
  const auto kind = [](const Announcement& one) { return one.onDevice != 0 ? "a GPU" : "host memory"; };
  if (a.onDevice != b.onDevice) {
    return sentence("the kind of device", kind(a), kind(b));
  }
  if (a.slotBytes != b.slotBytes) {
    return sentence("PEAL_SLOT_BYTES", a.slotBytes, b.slotBytes);
  }
  if (a.slots != b.slots) {
    return sentence("PEAL_SLOTS", a.slots, b.slots);
  }
  if (std::memcmp(a.algorithm, b.algorithm, sizeof a.algorithm) != 0) {
    return sentence("PEAL_ALGO", static_cast<const char*>(a.algorithm),
                    static_cast<const char*>(b.algorithm));
  }
  if (std::memcmp(a.transport, b.transport, sizeof a.transport) != 0) {
    return sentence("PEAL_TRANSPORT", static_cast<const char*>(a.transport),
                    static_cast<const char*>(b.transport));
  }
  if (a.onDevice == 0) {
    return "";
  }
  if (a.channels != b.channels) {
    return sentence("PEAL_CHANNELS", a.channels, b.channels);
  }
  if (a.deviceBufferBytes != b.deviceBufferBytes) {
    return sentence("PEAL_DEVICE_BUFFER_BYTES", a.deviceBufferBytes, b.deviceBufferBytes);
  }
  if (std::memcmp(a.protocol, b.protocol, sizeof a.protocol) != 0) {
    return sentence("PEAL_PROTOCOL", static_cast<const char*>(a.protocol),
                    static_cast<const char*>(b.protocol));
  }
  return "";
}

// What the others announced, if it agrees with this rank's.
Result<std::vector<Announcement>> compare(const std::vector<std::vector<std::byte>>& blobs,
                                          const Announcement& mine, int rank) {
  std::vector<Announcement> all;
  for (size_t peer = 0; peer < blobs.size(); ++peer) {
    const int peerRank = static_cast<int>(peer);
    Announcement theirs;
    if (blobs[peer].size() != sizeof theirs) {
      return Error{pealInvalidUsage,
                   fmt::format("rank {} runs a version of peal that does not fit rank {}'s ({}).", peerRank,
                               rank, PEAL_VERSION_CODE)};
    }
    std::memcpy(&theirs, blobs[peer].data(), sizeof theirs);
    theirs.algorithm[sizeof theirs.algorithm - 1] = '\0';
    theirs.protocol[sizeof theirs.protocol - 1] = '\0';
    theirs.transport[sizeof theirs.transport - 1] = '\0';
    if (std::string what = difference(mine, rank, theirs, peerRank); !what.empty()) {
      return Error{pealInvalidUsage, what};
    }
    all.push_back(theirs);
  }
  return all;
}

// Of each rank the lowest on its node.
std::vector<int> nodeLabels(const std::vector<Announcement>& all) {
  std::vector<int> labels;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    size_t lowest = 0;
    while (!sameNode(all[lowest].node, all[rank].node)) {
      ++lowest;
    }
    labels.push_back(static_cast<int>(lowest));
  }
  return labels;
}

// Ranks of one communicator share its secret. A rank that is alone has none: a counter then.
uint64_t communicatorNumber(const Secret& secret, int size) {
  static std::atomic<uint64_t> alone{0};
  if (size == 1) {
    return ++alone;
  }
  uint64_t number = 0;
  static_assert(crypto_generichash_BYTES_MIN >= sizeof number);
  std::array<unsigned char, crypto_generichash_BYTES_MIN> hash{};
  crypto_generichash(hash.data(), hash.size(), secret.data(), secret.size(), nullptr, 0);
  std::memcpy(&number, hash.data(), sizeof number);
  return number;
}

}  // namespace

Result<std::shared_ptr<Communicator>> Communicator::create(Exchange& exchange, const Secret& secret,
                                                           const CommOptions& options, Deadline deadline) {
  const int rank = exchange.rank();
  const int size = exchange.size();
  // Not make_shared: the constructor is private.
  std::shared_ptr<Communicator> comm(new Communicator(options));
  HostContext& context = comm->context_;
  context.rank = rank;
  context.size = size;
  context.name = options.name.empty() ? fmt::format("rank {} of {}", rank, size)
                                      : fmt::format("'{}' rank {} of {}", options.name, rank, size);
  context.timeoutMs = options.timeoutMs;
  context.spinUs = configuration()->integer(Knob::SpinUs);
  context.abort = &comm->abort_;
  context.sizeScratch(static_cast<size_t>(size));
  comm->secret_ = secret;
  comm->sendSequence_.resize(static_cast<size_t>(size));
  comm->recvSequence_.resize(static_cast<size_t>(size));
  comm->number_ = communicatorNumber(secret, size);
  if (size > 1) {
    PEAL_TRY(comm->connectHost(exchange, deadline));
  }
  const bool onGpu = options.device != PEAL_DEVICE_HOST;
  if (onGpu || context.grouping != nullptr) {
    Result<LinkTable> links = agreeOnLinks(exchange, context, comm->sendSequence_, comm->recvSequence_);
    if (!links) {
      return links.error();
    }
    comm->links_ = *links;
  }
  if (onGpu) {
    PEAL_TRY(comm->connectDevice(exchange, deadline));
    comm->links_->gpu = gpuCostOn(comm->device_->facts().path, comm->links_->gpu);
  }
  return comm;
}

Result<void> Communicator::connectHost(Exchange& exchange, Deadline deadline) {
  const Announcement mine = announcementOf(options_, size());
  std::vector<std::byte> blob(sizeof mine);
  std::memcpy(blob.data(), &mine, sizeof mine);
  Result<std::vector<std::vector<std::byte>>> blobs = exchange.allGather(blob);
  if (!blobs) {
    return blobs.error();
  }
  const Result<std::vector<Announcement>> all = compare(*blobs, mine, rank());
  if (!all) {
    return all.error();
  }
  groupingTable_.resize(groupingTableSize(all->size()));
  grouping_ = groupRanks(nodeLabels(*all), groupingTable_);
  Result<std::unique_ptr<Endpoint>> endpoint =
      connectHosts(exchange, secret_, grouping_,
                   {.slotBytes = slotBytesFor(size()),
                    .slots = mine.slots,
                    .directRead = configuration()->integer(Knob::DirectRead) != 0,
                    .interfaces = configuration()->text(Knob::Interface),
                    .fabrics = configuredFabrics(),
                    .deadline = deadline});
  if (!endpoint) {
    return endpoint.error();
  }
  endpoint_ = std::move(*endpoint);
  context_.endpoint = endpoint_.get();
  context_.polled = endpoint_->needsPoll() ? endpoint_.get() : nullptr;
  context_.grouping = grouping_.nodes > 1 ? &grouping_ : nullptr;
  context_.oversubscribed = grouping_.nodeSize(grouping_.node(rank())) > allowedCpus();
  const bool here = options_.device == PEAL_DEVICE_HOST && grouping_.nodes == 1;
  return here ? agreeOnReach(exchange) : Result<void>();
}

// Message sizes and algorithms depend on it, so all ranks must know the same.
Result<void> Communicator::agreeOnReach(Exchange& exchange) {
  const bool reaches = endpoint_->reachesAll() && endpoint_->slotBytes() >= kDirectLeastSlotBytes;
  const Result<std::vector<std::vector<std::byte>>> all =
      exchange.allGather({std::byte{reaches}, std::byte{context_.oversubscribed}});
  if (!all) {
    return all.error();
  }
  const auto said = [](size_t place) {
    return
        [place](const std::vector<std::byte>& one) { return one.size() == 2 && one[place] == std::byte{1}; };
  };
  context_.reachesAll = std::all_of(all->begin(), all->end(), said(0));
  context_.crowded = std::any_of(all->begin(), all->end(), said(1));
  return {};
}

}  // namespace peal

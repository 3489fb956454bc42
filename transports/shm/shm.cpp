#include "transports/shm/shm.h"

#include <fmt/format.h>

#include "lib/base/log.h"
#include "lib/memory/descriptor.h"
#include "transports/shm/card.h"
#include "transports/shm/crossread.h"
#include "transports/shm/endpoint.h"

namespace peal {
namespace {

constexpr size_t kMaxSlotBytes = size_t{1} << 24;
constexpr int kMaxSlots = 64;

// For whoever wonders why a buffer is copied: with PEAL_LOG=info.
void logPeers(const shm::Membership& membership, const ShmOptions& options) {
  int sameProcess = 0;
  int readable = 0;
  for (const shm::Peer& peer : membership.peers) {
    sameProcess += peer.sameProcess ? 1 : 0;
    readable += peer.peerCanRead ? 1 : 0;
  }
  bool works = false;
  log(LogLevel::Info,
      fmt::format(
          "rank {}: shared memory with {} peers, {} of them in this process. Direct reads {}; {} peers "
          "can read registered buffers ({}).",
          options.numberOf(membership.rank), membership.peers.size() - 1, sameProcess,
          options.directRead ? "on" : "off", readable, shm::describeCrossRead(works)));
}

}  // namespace

Result<std::unique_ptr<Endpoint>> connectShm(Exchange& exchange, const std::array<uint8_t, 32>& secret,
                                             const ShmOptions& options) {
  if (options.slotBytes == 0 || options.slotBytes % shm::kLine != 0 || options.slotBytes > kMaxSlotBytes ||
      options.slots < 1 || options.slots > kMaxSlots) {
    return Error{pealInvalidArgument,
                 fmt::format("{} slots of {} bytes: there must be 1 to {} slots, of a multiple of {} bytes "
                             "and at most {}",
                             options.slots, options.slotBytes, kMaxSlots, shm::kLine, kMaxSlotBytes)};
  }
  const shm::Layout layout(exchange.size(), static_cast<uint32_t>(options.slots), options.slotBytes);
  Result<shm::Membership> membership = shm::connectPeers(exchange, secret, options, layout);
  if (!membership) {
    return membership.error();
  }
  if (logLevel() >= LogLevel::Info) {
    logPeers(*membership, options);
  }
  return std::unique_ptr<Endpoint>(
      std::make_unique<shm::ShmEndpoint>(std::move(*membership), layout, options));
}

ShmSupport probeShm() {
  ShmSupport support;
  const Result<OwnedFd> file = createMemoryFile("peal-probe", wholePages(1));
  const Result<OwnedFd> socket = shm::listenAt(shm::randomName(), 1);
  support.available = file && socket;
  support.reason = !file     ? file.error().message
                   : !socket ? socket.error().message
                             : "sealed memory files over abstract Unix sockets";
  support.crossReadReason = shm::describeCrossRead(support.crossRead);
  return support;
}

}  // namespace peal

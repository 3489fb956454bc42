#include "transports/network/network.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/log.h"
#include "transports/network/endpoint.h"
#include "transports/network/vote.h"

namespace peal {
namespace {

Result<void> errorOf(const auto& result) { return result ? Result<void>() : Result<void>(result.error()); }

// The first fabric that works on every rank, or nullptr; `reasons` says of each that did not why.
Result<std::unique_ptr<Fabric>> chooseFabric(Exchange& exchange, network::Mesh& mesh,
                                             const std::vector<FabricCandidate>& candidates,
                                             const NetworkOptions& options) {
  std::string reasons;
  pealResult_t code = pealSystemError;
  for (const FabricCandidate& candidate : candidates) {
    Result<std::unique_ptr<Fabric>> fabric = candidate.open(options.fabric);
    Result<void> verdict = agree(exchange, errorOf(fabric));
    if (verdict) {
      verdict = agree(exchange, (*fabric)->connect(exchange, options.peers, mesh, options.deadline));
    }
    if (verdict) {
      log(LogLevel::Info, fmt::format("rank {}: {} carries messages to {} ranks on other nodes",
                                      exchange.rank(), (*fabric)->name(), options.peers.size()));
      return fabric;
    }
    code = verdict.error().code;
    reasons += fmt::format(" {}: {}", candidate.name, verdict.error().message);
    log(LogLevel::Info, fmt::format("rank {}: {} does not serve: {}", exchange.rank(), candidate.name,
                                    verdict.error().message));
  }
  return Error{code,
               fmt::format("the ranks are on different nodes, and nothing carries messages between all of "
                           "them.{} PEAL_TRANSPORT selects what is tried.",
                           reasons.empty() ? " Nothing was tried." : reasons)};
}

}  // namespace

Result<std::unique_ptr<NetworkEndpoint>> connectNetwork(Exchange& exchange,
                                                        const std::array<uint8_t, 32>& secret,
                                                        const std::vector<FabricCandidate>& candidates,
                                                        const NetworkOptions& options) {
  const auto meet = [secret, interfaces = options.interfaces](Exchange& ranks, const std::vector<int>& peers,
                                                              Deadline deadline) {
    return network::meetPeers(ranks, secret, {peers, interfaces, deadline});
  };
  Result<std::vector<network::Connection>> met = meet(exchange, options.peers, options.deadline);
  if (!met) {
    return met.error();
  }
  auto bell = std::make_unique<network::Bell>();
  auto mesh = std::make_unique<network::Mesh>(exchange.size(), std::move(*met), *bell, meet);
  PEAL_TRY(agree(exchange, mesh->start()));
  Result<std::unique_ptr<Fabric>> fabric = chooseFabric(exchange, *mesh, candidates, options);
  if (!fabric) {
    return fabric.error();
  }
  return std::unique_ptr<NetworkEndpoint>(std::make_unique<network::Network>(
      exchange.rank(), exchange.size(), options, std::move(bell), std::move(mesh), std::move(*fabric)));
}

FabricOptions enlarged(const FabricOptions& asked, int slotsFactor, size_t bytesFactor) {
  constexpr int kSlotsMost = 64;                   // whoever posts references remembers so many
  constexpr size_t kEnlargedMostBytes = 2U << 20;  // of one direction of a link
  if (!asked.ranksApart) {
    return asked;
  }
  FabricOptions larger = asked;
  larger.slots = std::min(asked.slots * slotsFactor, std::max(asked.slots, kSlotsMost));
  const size_t fitBytes = kEnlargedMostBytes / static_cast<size_t>(larger.slots) / 64 * 64;
  larger.slotBytes = std::clamp(fitBytes, asked.slotBytes, asked.slotBytes * bytesFactor);
  const auto fits = static_cast<int>(kEnlargedMostBytes / larger.slotBytes);
  larger.slots = std::clamp(fits, asked.slots, larger.slots);
  return larger;
}

}  // namespace peal

// How the ranks' fabrics meet: cards over the exchange, then a greeting in each direction over UCX itself, so
// that a communicator exists only if its messages get through.
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <thread>

#include "transports/ucx/fabric.h"

namespace peal::ucx {
namespace {

// How long a greeting may take: connections are made, nobody computes.
constexpr int kGreetMs = 20000;

uint64_t randomToken() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Result<void> UcxFabric::setHandler() {
  ucp_am_handler_param_t param{};
  param.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = kMessageId;
  param.cb = &UcxFabric::onMessage;
  param.arg = this;
  const ucs_status_t status = worker_->table().setHandler(worker_->handle(), &param);
  if (status != UCS_OK) {
    return Error{pealSystemError,
                 fmt::format("{}: ucp_worker_set_am_recv_handler failed: {}", worker_->describeLibrary(),
                             describe(worker_->table(), status))};
  }
  return {};
}

Result<std::vector<Card>> UcxFabric::exchangeCards(Exchange& exchange, const Card& mine) const {
  Result<std::vector<std::vector<std::byte>>> all = exchange.allGather(packCard(mine));
  if (!all) {
    return all.error();
  }
  std::vector<Card> cards(all->size());
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    if (!unpackCard((*all)[rank], cards[rank])) {
      return Error{pealRemoteError,
                   fmt::format("rank {}'s card for UCX is not one of this version of peal. All "
                               "ranks must run the same version.",
                               rank)};
    }
    if (!cards[rank].error.empty()) {
      return Error{static_cast<int>(rank) == station_.rank ? pealSystemError : pealRemoteError,
                   fmt::format("rank {} cannot connect over UCX: {}", rank, cards[rank].error)};
    }
  }
  return cards;
}

Result<void> UcxFabric::connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane& /*control*/,
                                Deadline deadline) {
  station_.rank = exchange.rank();
  station_.token = randomToken();
  Card mine;
  mine.slotBytes = station_.options.slotBytes;
  mine.slots = static_cast<uint64_t>(station_.options.slots);
  mine.token = station_.token;
  mine.socketBytes = station_.socketBytes;
  mine.ucxVersion = worker_->library().version;
  Result<std::vector<std::byte>> address = worker_->address();
  mine.error = address ? "" : address.error().message;
  mine.address = address ? std::move(*address) : std::vector<std::byte>();
  Result<std::vector<Card>> cards = exchangeCards(exchange, mine);
  if (!cards) {
    return cards.error();
  }
  // Each of these steps is tried by all, and what failed anywhere is known everywhere before the next.
  const auto agree = [&](const Result<void>& step) -> Result<void> {
    Card outcome;
    outcome.error = step ? "" : step.error().message;
    Result<std::vector<Card>> outcomes = exchangeCards(exchange, outcome);
    return !step ? step : !outcomes ? Result<void>(outcomes.error()) : Result<void>();
  };
  PEAL_TRY(agree(makeLinks(*cards, peers)));
  PEAL_TRY(agree(greet(*cards, Deadline::afterMs(std::min(deadline.leftMs(), kGreetMs)))));
  isConnected_ = true;
  return {};
}

Result<void> UcxFabric::makeLinks(const std::vector<Card>& cards, const std::vector<int>& peers) {
  byRank_.assign(cards.size(), nullptr);
  for (const int peer : peers) {
    const Card& card = cards[static_cast<size_t>(peer)];
    if (card.slotBytes != station_.options.slotBytes ||
        card.slots != static_cast<uint64_t>(station_.options.slots)) {
      return Error{pealInvalidUsage,
                   fmt::format("rank {} has {} slots of {} bytes, rank {} has {} of {}. PEAL_SLOTS and "
                               "PEAL_SLOT_BYTES must be the same on all ranks.",
                               station_.rank, station_.options.slots, station_.options.slotBytes, peer,
                               card.slots, card.slotBytes)};
    }
    Result<std::unique_ptr<UcxLink>> link = UcxLink::make(station_, peer, card);
    if (!link) {
      return link.error();
    }
    links_.push_back(std::move(*link));
    byRank_[static_cast<size_t>(peer)] = links_.back().get();
  }
  for (const std::unique_ptr<UcxLink>& link : links_) {
    PEAL_TRY(makeEndpoint(*link, cards[static_cast<size_t>(link->peerRank())]));
  }
  return {};
}

Result<void> UcxFabric::makeEndpoint(UcxLink& link, const Card& card) {
  if (card.address.empty()) {
    return Error{pealRemoteError, fmt::format("rank {} gave no address of its UCX worker", link.peerRank())};
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(card.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&UcxFabric::onEndpointError, &link};
  const ucs_status_t status = worker_->table().endpointCreate(worker_->handle(), &params, &link.endpoint);
  if (status != UCS_OK) {
    link.endpoint = nullptr;
    return Error{
        pealSystemError,
        fmt::format("{} finds no way to rank {} (UCX {}): {}. UCX_TLS and UCX_NET_DEVICES, if set, must "
                    "name what both nodes have; PEAL_INTERFACE chooses interfaces.",
                    worker_->describeLibrary(), link.peerRank(), card.ucxVersion,
                    describe(worker_->table(), status))};
  }
  return {};
}

Result<void> UcxFabric::greet(const std::vector<Card>& cards, Deadline deadline) {
  struct Greeting {
    UcxLink* link;
    bool saidHello = false;
    bool saidReady = false;
  };
  std::vector<Greeting> open;
  for (const std::unique_ptr<UcxLink>& link : links_) {
    open.push_back({link.get()});
  }
  for (;;) {
    std::erase_if(open, [](Greeting& greeting) {
      UcxLink& link = *greeting.link;
      greeting.saidHello = greeting.saidHello || link.trySendControl(Kind::Hello);
      greeting.saidReady = greeting.saidReady || (link.gotHello && link.trySendControl(Kind::Ready));
      return greeting.saidReady && link.gotReady;
    });
    station_.progress();
    if (station_.faults.first()) {
      return station_.faults.first()->error;
    }
    if (open.empty() && settled()) {
      return {};
    }
    if (deadline.passed()) {
      break;
    }
    std::this_thread::yield();
  }
  std::string silent;
  for (const Greeting& greeting : open) {
    silent += fmt::format("{}rank {} (UCX {}{})", silent.empty() ? "" : ", ", greeting.link->peerRank(),
                          cards[static_cast<size_t>(greeting.link->peerRank())].ucxVersion,
                          greeting.link->gotHello ? ", which was heard but does not hear this rank" : "");
  }
  return Error{pealTimeout,
               fmt::format("{}: rank {} got no greeting within the time limit from {}. A firewall or a "
                           "wrong interface may be in the way; PEAL_INTERFACE chooses interfaces.",
                           worker_->describeLibrary(), station_.rank,
                           silent.empty() ? "UCX itself, which does not send" : silent)};
}

}  // namespace peal::ucx

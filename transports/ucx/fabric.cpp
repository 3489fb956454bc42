#include "transports/ucx/fabric.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "lib/base/log.h"
#include "transports/ucx/settings.h"

namespace peal::ucx {
namespace {

// How long a fabric that ends waits for peers to take its last messages, and UCX to close its connections.
constexpr int kLeaveMs = 1000;
constexpr int kCloseMs = 1000;
// And how long a rank that has failed waits for peers to take what is in its caller's memory.
constexpr int kWithdrawMs = 50;

}  // namespace

Result<std::unique_ptr<Fabric>> UcxFabric::open(const Library& library, const FabricOptions& options,
                                                const UcxOptions& ucxOptions) {
  Result<std::unique_ptr<Worker>> worker = Worker::open(library, options, ucxOptions);
  if (!worker) {
    return worker.error();
  }
  std::unique_ptr<UcxFabric> fabric(new UcxFabric(std::move(*worker), options));
  PEAL_TRY(fabric->setHandler());
  return std::unique_ptr<Fabric>(std::move(fabric));
}

UcxFabric::UcxFabric(std::unique_ptr<Worker> worker, const FabricOptions& options)
    : station_(worker->table(), worker->handle(), options), worker_(std::move(worker)) {
  station_.socketBytes = socketBytes(options);
}

UcxFabric::~UcxFabric() {
  if (isConnected_ && !station_.faults.first()) {
    leave();
  }
  closeEndpoints();
  for (const std::unique_ptr<UcxLink>& link : links_) {
    link->giveBack();
  }
}

// Peers that have all messages of this rank lose nothing when its connections end; one that is busy elsewhere
// finds them in its system's memory, if that has room for them.
void UcxFabric::leave() {
  const Deadline deadline = Deadline::afterMs(kLeaveMs);
  std::vector<UcxLink*> untold;
  for (const std::unique_ptr<UcxLink>& link : links_) {
    untold.push_back(link.get());
  }
  const auto isDone = [](const std::unique_ptr<UcxLink>& link) {
    return link->dead || link->left || link->allReleased();
  };
  for (;;) {
    std::erase_if(untold, [](UcxLink* link) { return link->dead || link->trySendControl(Kind::Leaving); });
    station_.progress();
    const bool isTold = untold.empty() && settled();
    if (station_.faults.first() || deadline.passed() ||
        (isTold && std::all_of(links_.begin(), links_.end(), isDone))) {
      return;
    }
    std::this_thread::yield();
  }
}

// Peers that are alive take the bytes soon; of others UCX lets go when its connections end.
void UcxFabric::withdraw() {
  const Deadline deadline = Deadline::afterMs(kWithdrawMs);
  const auto isDrained = [](const std::unique_ptr<UcxLink>& link) { return link->drained(); };
  while (!std::all_of(links_.begin(), links_.end(), isDrained)) {
    if (deadline.passed()) {
      closeEndpoints();
      return;
    }
    std::this_thread::yield();
  }
}

void UcxFabric::excuse(int peerRank) {
  station_.faults.excuse(peerRank);
  for (const std::unique_ptr<UcxLink>& link : links_) {
    if (link->peerRank() == peerRank) {
      link->left = true;
    }
  }
}

void UcxFabric::closeEndpoints() {
  std::vector<void*> closing;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  for (const std::unique_ptr<UcxLink>& link : links_) {
    link->left = true;
    if (link->endpoint != nullptr) {
      void* request = worker_->table().endpointClose(link->endpoint, &param);
      if (request != nullptr && !UCS_PTR_IS_ERR(request)) {
        closing.push_back(request);
      }
    }
    link->endpoint = nullptr;
    link->dead = true;
  }
  const Deadline deadline = Deadline::afterMs(kCloseMs);
  while (!closing.empty() || station_.inFlight > 0) {
    worker_->table().workerProgress(worker_->handle());
    std::erase_if(closing, [this](void* request) {
      const bool isDone = worker_->table().requestStatus(request) != UCS_INPROGRESS;
      if (isDone) {
        worker_->table().requestFree(request);
      }
      return isDone;
    });
    if (deadline.passed()) {
      log(LogLevel::Warn, fmt::format("rank {}: UCX did not close {} connections and {} sends within {} ms",
                                      station_.rank, closing.size(), station_.inFlight, kCloseMs));
      return;
    }
  }
}

bool UcxFabric::arm() {
  station_.sendCredits();
  return station_.table.workerArm(worker_->handle()) == UCS_OK;
}

ucs_status_t UcxFabric::onMessage(void* fabricPointer, const void* headerPointer, size_t headerBytes,
                                  void* dataPointer, size_t bytes, const ucp_am_recv_param_t* param) {
  auto& fabric = *static_cast<UcxFabric*>(fabricPointer);
  Station& station = fabric.station_;
  auto* data = static_cast<std::byte*>(dataPointer);
  void* kept = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 ? dataPointer : nullptr;
  Header header;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return UCS_ERR_UNSUPPORTED;  // never asked for; refusing ends the send at the peer
  }
  if (headerBytes == kHeaderBytes) {
    std::memcpy(&header, headerPointer, sizeof header);
  } else if (headerBytes == 0 && bytes >= kHeaderBytes) {
    std::memcpy(&header, data, sizeof header);
    data += kHeaderBytes;
    bytes -= kHeaderBytes;
  } else {
    return UCS_OK;  // a stranger's
  }
  const auto srcRank = static_cast<size_t>(header.srcRank);
  // A stranger, or a job that had this address before, does not know the token.
  if (header.token != station.token || header.srcRank < 0 || srcRank >= fabric.byRank_.size() ||
      fabric.byRank_[srcRank] == nullptr) {
    // Once: whoever sends such messages may send them without end.
    log(std::exchange(fabric.metStranger_, true) ? LogLevel::Debug : LogLevel::Warn,
        fmt::format("rank {} ignores messages over UCX that are not from a rank of its communicator",
                    station.rank));
    return UCS_OK;
  }
  return fabric.byRank_[srcRank]->onMessage(header, data, bytes, kept);
}

void UcxFabric::onEndpointError(void* link, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  static_cast<UcxLink*>(link)->lose(status);
}

}  // namespace peal::ucx

namespace peal {

Result<std::unique_ptr<Fabric>> openUcx(const FabricOptions& options, const UcxOptions& ucxOptions) {
  const Result<ucx::Library>& library = ucx::library();
  if (!library) {
    return library.error();
  }
  return ucx::UcxFabric::open(*library, options, ucxOptions);
}

}  // namespace peal

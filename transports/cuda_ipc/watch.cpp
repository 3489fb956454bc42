#include "transports/cuda_ipc/watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "lib/base/log.h"

namespace peal::cuda {
namespace {

// A peer's death is noticed within this time.
constexpr int64_t kLookUs = 10000;
// After a loss, for importers of other pid namespaces, whose end cannot be seen: so long they may need to
// leave by themselves. Then the window stays allocated until this process ends.
constexpr int64_t kPatienceMs = 60000;
// The thread says farewell at once if it runs at all.
constexpr int64_t kFarewellMs = 1000;

}  // namespace

// ---- beginning and end ----

Result<std::unique_ptr<Watch>> Watch::start(std::unique_ptr<Endpoint> control, const WatchOptions& options,
                                            std::shared_ptr<Regions> regions) {
  if (control->slotBytes() < sizeof(Note)) {
    return Error{pealInternalError, fmt::format("the control endpoint's slots have {} bytes, {} are needed",
                                                control->slotBytes(), sizeof(Note))};
  }
  std::unique_ptr<Watch> watch(new Watch(std::move(control), options, std::move(regions)));
  try {
    watch->thread_ = std::thread([self = watch.get()] { self->run(); });
  } catch (const std::system_error& error) {
    return Error{pealSystemError, fmt::format("no thread could be started to watch the peers: {}. Is the "
                                              "limit on processes (ulimit -u) reached?",
                                              error.what())};
  }
  return watch;
}

Watch::Watch(std::unique_ptr<Endpoint> control, const WatchOptions& options, std::shared_ptr<Regions> regions)
    : control_(std::move(control)),
      options_(options),
      regions_(std::move(regions)),
      importers_(static_cast<size_t>(options.size)) {
  if (Result<HandlePost> post = HandlePost::open()) {
    post_ = std::make_unique<HandlePost>(std::move(*post));
  } else {
    log(LogLevel::Info,
        fmt::format("{}: buffers of cuMemCreate will be copied: {}", options_.name, post.error().message));
  }
  mapper_ =
      std::make_unique<Mapper>(MapperOptions{.device = options_.device, .name = options_.name}, post_.get(),
                               readers_, [this](int peerRank, const Note& note) { post(peerRank, note); });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (control_) {
      control_->wake();
    }
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Watch::begin(std::vector<std::optional<ImporterCard>> importers) {
  const std::lock_guard lock(mutex_);
  for (size_t rank = 0; rank < importers_.size(); ++rank) {
    importers_[rank].reset();
    if (rank < importers.size() && importers[rank]) {
      Importer& importer = importers_[rank].emplace();
      importer.process = std::move(importers[rank]->process);
      importer.post = importers[rank]->post;
    }
  }
}

void Watch::leave(std::shared_ptr<Window> window) {
  std::unique_lock lock(mutex_);
  window_ = std::move(window);
  leaving_ = true;
  control_->wake();
  // Not for long: in a forked child there is no thread.
  changed_.wait_for(lock, std::chrono::milliseconds(kFarewellMs), [this] { return farewellSaid_; });
}

// ---- what other threads ask for ----

uint64_t Watch::announce(Region region, const Note& note, std::vector<OwnedFd> files) {
  const std::lock_guard lock(mutex_);
  forEachImporter([&](int peer, Importer& importer) {
    if (!importer.gone()) {
      region.holds[static_cast<size_t>(peer)] = Hold::Told;
    }
  });
  const std::vector<Hold> holds = region.holds;
  const Files shared =
      files.empty() ? nullptr : std::make_shared<const std::vector<OwnedFd>>(std::move(files));
  Note announcement = note;
  announcement.kind = NoteKind::Announce;
  announcement.id = regions_->add(std::move(region));
  for (size_t peer = 0; peer < holds.size(); ++peer) {
    if (holds[peer] == Hold::Told) {
      postLocked(static_cast<int>(peer), announcement, shared);
    }
  }
  return announcement.id;
}

Result<void> Watch::retire(uint64_t id, NoteKind how, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const std::optional<std::vector<int>> toAsk = regions_->retire(id);
  if (!toAsk) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: there is no registered buffer with the id {}", options_.name, id)};
  }
  Note note;
  note.kind = how;
  note.id = id;
  for (const int peer : *toAsk) {
    postLocked(peer, note);
  }
  while (!regions_->holders(id).empty()) {
    if (deadline.passed()) {
      return Error{
          pealTimeout,
          fmt::format("{}: ranks {} still have the buffer mapped. Do not free it; deregister it again.",
                      options_.name, fmt::join(regions_->holders(id), ", "))};
    }
    changed_.wait_for(lock, std::chrono::milliseconds(std::min(deadline.leftMs(), 100) + 1));
  }
  regions_->erase(id);
  return {};
}

std::optional<DeviceMemory::Loss> Watch::loss() const {
  if (!lost_.load(std::memory_order_acquire)) {  // pairs with lose()'s store
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  return loss_;
}

void Watch::onLoss(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  onLoss_ = std::move(action);
  if (onLoss_ && loss_) {
    onLoss_();
  }
}

// In good order nothing is said before leave(): until then this rank may still fail.
void Watch::farewell(int culpritRank, const std::string& reason) {
  if (culpritRank >= 0) {
    control_->farewell(culpritRank, reason);
  }
}

void Watch::post(int peerRank, const Note& note) {
  const std::lock_guard lock(mutex_);
  postLocked(peerRank, note);
}

// Nothing follows our Leaving, and nothing is sent to a peer that reads no more.
void Watch::postLocked(int peerRank, const Note& note, const Files& files) {
  std::optional<Importer>& importer = importers_[static_cast<size_t>(peerRank)];
  if (importer && !importer->gone() && !leavingTold_) {
    importer->outgoing.push_back({note, files});
    control_->wake();
  }
}

void Watch::lose(Error error, int culpritRank) {
  const std::lock_guard lock(mutex_);
  if (!loss_) {
    loss_ = DeviceMemory::Loss{std::move(error), culpritRank};
    patience_ = Deadline::afterMs(kPatienceMs);
    lost_.store(true, std::memory_order_release);  // pairs with loss()'s load
    if (onLoss_) {
      onLoss_();
    }
  }
}

// ---- the thread ----

void Watch::run() {
  const RelaxedCapture relaxed;  // it frees the window at the end, whatever is being captured then
  for (;;) {
    const bool sent = sendNotes();
    const bool received = receiveNotes();
    lookAtHealth();
    beginLeaving();
    if (mayEnd()) {
      break;
    }
    if (sent || received) {
      continue;
    }
    const uint32_t token = control_->prepareSleep();
    if (anythingToDo()) {
      control_->cancelSleep();
    } else {
      control_->sleep(token, kLookUs);
    }
  }
  end();
}

// The handles that the next note needs. False: not now.
bool Watch::sendFiles(Importer& importer) {
  Outgoing& next = importer.outgoing.front();
  if (next.files == nullptr) {
    return true;
  }
  Result<HandlePost::Sent> sent = Error{pealSystemError, "there is no socket to send its handles"};
  if (post_ != nullptr && importer.post.name != Nonce{}) {
    sent = post_->send(importer.post, options_.rank, next.note.id, *next.files);
  }
  importer.postFull = sent && *sent == HandlePost::Sent::Later;
  if (importer.postFull) {
    return false;
  }
  if (!sent) {
    next.note.pieces = -1;
    next.note.reason.set(sent.error().message);
  }
  next.files = nullptr;
  return true;
}

// What fits into the links. True: something did.
bool Watch::sendNotes() {
  bool any = false;
  const std::lock_guard lock(mutex_);
  forEachImporter([&](int peer, Importer& importer) {
    while (!importer.outgoing.empty()) {
      std::byte* const slot = importer.ended ? nullptr : link(peer).tryStage(sizeof(Note));
      if (slot == nullptr || !sendFiles(importer)) {
        return;
      }
      std::memcpy(slot, &importer.outgoing.front().note, sizeof(Note));
      link(peer).post(sizeof(Note), Digest{});
      importer.outgoing.pop_front();
      any = true;
    }
  });
  return any;
}

bool Watch::receiveNotes() {
  bool any = false;
  for (int peer = 0; peer < options_.size; ++peer) {
    Arrival arrival;
    if (!isPeer(peer) || !link(peer).tryReceive(arrival)) {
      continue;
    }
    any = true;
    Note note;
    const bool fits = arrival.bytes == sizeof note;
    if (fits) {
      std::memcpy(&note, arrival.data, sizeof note);
    }
    const size_t arrivedBytes = arrival.bytes;
    link(peer).release();
    if (fits) {
      handle(peer, note);
    } else {
      lose({pealRemoteError, fmt::format("{}: rank {} sent a note of {} bytes, they have {}", options_.name,
                                         peer, arrivedBytes, sizeof note)},
           peer);
    }
  }
  return any;
}

// Between prepareSleep() and sleep().
bool Watch::anythingToDo() {
  Arrival arrival;
  for (int peer = 0; peer < options_.size; ++peer) {
    if (isPeer(peer) && link(peer).tryReceive(arrival)) {
      return true;
    }
  }
  const std::lock_guard lock(mutex_);
  bool any = stop_ || (leaving_ && !leavingTold_);
  forEachImporter([&](int peer, const Importer& importer) {
    any = any || (!importer.outgoing.empty() && !importer.ended && !importer.postFull &&
                  link(peer).tryStage(sizeof(Note)) != nullptr);
  });
  return any;
}

void Watch::handle(int peerRank, const Note& note) {
  switch (note.kind) {
    case NoteKind::Announce:
    case NoteKind::Retire:
    case NoteKind::Withdraw:
      if (mapper_) {  // else this rank leaves, and says so with its last note
        mapper_->take(peerRank, note);
      }
      return;
    case NoteKind::Mapped:
      if (note.address == 0) {
        log(LogLevel::Info, fmt::format("{}: rank {} cannot map a registered buffer, so it gets copies: {}",
                                        options_.name, peerRank, note.reason.text()));
      }
      regions_->mapped(peerRank, note.id, note.address);
      return;
    case NoteKind::Closed:
      regions_->closed(peerRank, note.id);
      break;
    case NoteKind::Leaving: {
      const std::lock_guard lock(mutex_);
      if (importers_[static_cast<size_t>(peerRank)]) {
        importers_[static_cast<size_t>(peerRank)]->left = true;
      }
      regions_->gone(peerRank);
      break;
    }
    default:
      lose({pealRemoteError, fmt::format("{}: rank {} sent a note of the unknown kind {}", options_.name,
                                         peerRank, static_cast<uint64_t>(note.kind))},
           peerRank);
      return;
  }
  const std::lock_guard lock(mutex_);  // a waiter between its look and its wait would miss this
  changed_.notify_all();
}

void Watch::lookAtHealth() {
  if (!lost_.load(std::memory_order_relaxed)) {  // this thread alone stores it
    // For nobody: who has left does not read what was posted last, and owes no answer.
    if (const Result<void> health = control_->progress(Endpoint::kNobody); !health) {
      lose(health.error(), control_->culpritRank());
    }
  }
  const std::lock_guard lock(mutex_);
  forEachImporter([&](int peer, Importer& importer) {
    if (!importer.ended && importer.process.ended()) {
      importer.ended = true;
      importer.outgoing.clear();
      regions_->gone(peer);
      changed_.notify_all();
    }
  });
}

// The farewell first: from then on the end of this process, whenever and however it comes, is nobody's fault.
// Notes go on, since peers may still owe some, and need answers.
void Watch::beginLeaving() {
  {
    const std::lock_guard lock(mutex_);
    if (!leaving_ || leavingTold_) {
      return;
    }
  }
  if (!lost_.load(std::memory_order_relaxed)) {  // this thread alone stores it
    control_->farewell(-1, "");
  }
  {
    const std::lock_guard lock(mutex_);
    farewellSaid_ = true;
    changed_.notify_all();
  }
  mapper_.reset();  // without the mutex: its thread may be about to post
  Note leaving;
  leaving.kind = NoteKind::Leaving;
  const std::lock_guard lock(mutex_);
  forEachImporter([&](int, Importer& importer) {
    if (!importer.ended) {
      importer.outgoing.push_back({leaving, nullptr});
    }
  });
  leavingTold_ = true;
}

// Told to stop; or this rank left, and every importer has too and has been told.
bool Watch::mayEnd() {
  const std::lock_guard lock(mutex_);
  if (stop_) {
    return true;
  }
  bool may = leavingTold_;
  forEachImporter([&](int peer, const Importer& importer) {
    const bool settled = importer.ended || (importer.left && importer.outgoing.empty());
    if (!settled && may && patience_ && patience_->passed() && !importer.process.visible()) {
      log(LogLevel::Warn,
          fmt::format("{}: rank {} may still have this rank's window mapped, and this process "
                      "cannot see whether it lives: the window stays allocated",
                      options_.name, peer));
      stop_ = true;
    }
    may = may && settled;
  });
  return may || stop_;
}

void Watch::end() {
  mapper_.reset();
  std::shared_ptr<Window> window;
  std::unique_ptr<Endpoint> control;
  {
    const std::lock_guard lock(mutex_);
    window = std::move(window_);
    control = std::move(control_);
    if (window && stop_) {
      window->abandon();  // a peer never let go, or the process ends
    }
  }
  window.reset();
  control.reset();                                  // says farewell, if nobody has
  through_.store(true, std::memory_order_release);  // pairs with through()
}

}  // namespace peal::cuda

// The watch thread of a communicator on a GPU: notices dead peers, tells peers of other processes about
// registered buffers, and at the end keeps this rank's window until nobody has it mapped.
//
// Owns the control endpoint (only its thread touches it; wake() and farewell() excepted, which any thread may
// call) and, once leave() has been called, the window. Makes no CUDA call while the communicator lives, so
// that the driver can never keep it from seeing a death; mapper.h does that. Used by memory.cpp.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transports/cuda_ipc/handle_post.h"
#include "transports/cuda_ipc/identity.h"
#include "transports/cuda_ipc/mapper.h"
#include "transports/cuda_ipc/notes.h"
#include "transports/cuda_ipc/readers.h"
#include "transports/cuda_ipc/regions.h"
#include "transports/cuda_ipc/window.h"
#include "transports/device_memory.h"

namespace peal::cuda {

struct WatchOptions {
  int rank = 0;
  int size = 1;
  int device = 0;
  std::string name;
  std::vector<int> localOf;  // of each rank its number in the control endpoint; -1: it is on another node
};

// A peer of another process, which maps this rank's memory.
struct ImporterCard {
  PeerProcess process;
  PostAddress post;
};

class Watch {
 public:
  static Result<std::unique_ptr<Watch>> start(std::unique_ptr<Endpoint> control, const WatchOptions& options,
                                              std::shared_ptr<Regions> regions);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  // Ends the thread at once, whatever peers have mapped.
  ~Watch();

  // This rank's kernels.
  const std::shared_ptr<Readers>& readers() const { return readers_; }
  // Where this rank's packets of handles arrive.
  PostAddress post() const { return post_ ? post_->address() : PostAddress{}; }
  // By rank: each peer that maps this rank's memory by IPC; nullopt, or nothing at all, for the others.
  // Before any of them can send a note.
  void begin(std::vector<std::optional<ImporterCard>> importers);

  // Registers, and tells the importers. `files`: the handles of its pieces, if it has such.
  uint64_t announce(Region region, const Note& note, std::vector<OwnedFd> files);
  // Asks them to close it, and waits. `how`: Retire, or Withdraw if their kernels may be reading it.
  Result<void> retire(uint64_t id, NoteKind how, Deadline deadline);

  std::optional<DeviceMemory::Loss> loss() const;
  void onLoss(std::function<void()> action);
  void farewell(int culpritRank, const std::string& reason);

  // This rank has nothing of its peers mapped any more but what the mapper has. Tells the importers, and
  // keeps the window until they are through too. Returns when this process may end at any time. The last call
  // before the destructor.
  void leave(std::shared_ptr<Window> window);
  // Whether it has freed everything.
  bool through() const { return through_.load(std::memory_order_acquire); }  // pairs with end()'s store

 private:
  using Files = std::shared_ptr<const std::vector<OwnedFd>>;
  struct Outgoing {
    Note note;
    Files files;  // go first, if there are any
  };
  struct Importer {
    PeerProcess process;
    PostAddress post;
    std::deque<Outgoing> outgoing;
    bool postFull = false;  // the next packet has to wait for the peer to read
    bool left = false;      // it said Leaving
    bool ended = false;     // its process did
    bool gone() const { return left || ended; }
  };

  Watch(std::unique_ptr<Endpoint> control, const WatchOptions& options, std::shared_ptr<Regions> regions);
  bool isPeer(int rank) const { return rank != options_.rank && localOf(rank) >= 0; }
  int localOf(int rank) const { return options_.localOf[static_cast<size_t>(rank)]; }
  Link& link(int peerRank) { return control_->link(localOf(peerRank)); }
  void run();
  bool sendNotes();
  bool receiveNotes();
  bool anythingToDo();
  void handle(int peerRank, const Note& note);
  void lookAtHealth();
  void beginLeaving();
  bool mayEnd();
  void end();
  void post(int peerRank, const Note& note);
  void postLocked(int peerRank, const Note& note, const Files& files = nullptr);
  bool sendFiles(Importer& importer);
  void lose(Error error, int culpritRank);
  template <class Action>
  void forEachImporter(const Action& action) {
    for (size_t rank = 0; rank < importers_.size(); ++rank) {
      if (importers_[rank]) {
        action(static_cast<int>(rank), *importers_[rank]);
      }
    }
  }

  // Of the thread, which resets it at the end with the mutex held.
  std::unique_ptr<Endpoint> control_;
  const WatchOptions options_;
  const std::shared_ptr<Regions> regions_;
  const std::shared_ptr<Readers> readers_ = std::make_shared<Readers>();
  // nullptr: it could not be opened. Sent by the thread, read by the mapper's.
  std::unique_ptr<HandlePost> post_;
  std::unique_ptr<Mapper> mapper_;  // of the thread

  mutable std::mutex mutex_;                        // guards everything below but the atomics
  std::condition_variable changed_;                 // somebody closed something, or is gone
  std::vector<std::optional<Importer>> importers_;  // by rank
  std::optional<DeviceMemory::Loss> loss_;
  std::function<void()> onLoss_;      // called with the mutex held
  std::optional<Deadline> patience_;  // after a loss: for importers whose end this process cannot see
  std::shared_ptr<Window> window_;
  bool leaving_ = false;
  bool farewellSaid_ = false;  // or a loss stands in its place
  bool leavingTold_ = false;
  bool stop_ = false;

  std::atomic<bool> lost_{false};  // loss_ is set: stored (release) by lose(), loaded (acquire) by loss()
  std::atomic<bool> through_{false};
  std::thread thread_;
};

}  // namespace peal::cuda

// Maps and closes peers' registered buffers, on a thread of its own: the driver may take long, or wait for
// running kernels, and the watch thread must see a dead peer meanwhile.
//
// Owns the mappings; destroying it closes all of them. The thread starts with the first job. Used by
// watch.cpp.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "lib/memory/pieces.h"
#include "transports/cuda_ipc/notes.h"
#include "transports/cuda_ipc/readers.h"
#include "transports/cuda_ipc/window.h"

namespace peal::cuda {

struct MapperOptions {
  int device = 0;
  std::string name;  // of the communicator, for messages
};

class Mapper {
 public:
  // `answer` gets the note for that peer; called on the mapper's thread.
  using Answer = std::function<void(int peerRank, const Note& note)>;
  // post: where handles arrive; nullptr: this rank has none.
  Mapper(MapperOptions options, HandlePost* post, std::shared_ptr<Readers> readers, Answer answer)
      : options_(std::move(options)), post_(post), readers_(std::move(readers)), answer_(std::move(answer)) {}
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;
  ~Mapper();

  // An Announce, a Retire or a Withdraw, in the order of their arrival. One thread at a time calls.
  void take(int peerRank, const Note& note);

 private:
  struct Job {
    int peerRank;
    Note note;
  };
  void run();
  // What holds a peer's buffer here, one or the other.
  struct Mapping {
    IpcMapping ipc;
    PieceMapping pieces;
  };
  Note map(const Job& job);
  void close(const Job& job);
  Result<uint64_t> mapAllocation(const Job& job, Mapping& mapping) const;
  Result<uint64_t> mapPieces(const Job& job, Mapping& mapping) const;

  const MapperOptions options_;
  HandlePost* const post_;
  const std::shared_ptr<Readers> readers_;
  const Answer answer_;
  std::mutex mutex_;  // guards jobs_ and stop_
  std::condition_variable work_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  std::map<std::pair<int, uint64_t>, Mapping> mapped_;  // by peer and id; of the thread, then of ~Mapper
  std::thread thread_;
};

}  // namespace peal::cuda

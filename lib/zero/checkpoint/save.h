// One save, from its beginning to its publication. The ranks agree three times: on the directory, that all
// wrote, that rank 0 published; what happens between is each rank's own.
//
//   begin   rank 0 makes the staging directory; vote; asynchronous: snapshot, and a thread that writes
//   finish  the part is written (synchronous: here); vote; rank 0 writes the user's bytes and the manifest,
//           and renames; vote
//
// Owned by the engine's C API. Works on the engine between steps only; the thread sees the snapshot alone.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "lib/zero/checkpoint/staging.h"
#include "lib/zero/checkpoint/state.h"
#include "lib/zero/checkpoint/vote.h"
#include "lib/zero/checkpoint/writer.h"

namespace peal::zero::checkpoint {

enum class SaveMode { Synchronous, Asynchronous };

class Save {
 public:
  // Collective. usable: an error of this rank that keeps it from saving; voted like all others. user: rank
  // 0's bytes count; copied.
  static Result<std::unique_ptr<Save>> begin(Collectives& collectives, const State& state,
                                             const std::string& path, std::span<const std::byte> user,
                                             SaveMode mode, const Result<void>& usable);
  // Collective. Afterwards the checkpoint is published, or an error on every rank and nothing changed.
  Result<void> finish();
  // Unfinished: gives up what this rank wrote. Waits for one block to be written at most.
  ~Save();
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

 private:
  Save(Collectives& collectives, const State& state) : collectives_(collectives), state_(state) {}
  Result<void> prepare(const std::string& path, std::span<const std::byte> user);
  Result<void> agreeOnPlace(const Result<void>& prepared);
  void startSnapshot();
  Result<PartEntry> write(const PartSource& source) const;
  Result<void> publish(const std::vector<VoteValues>& parts);
  void giveUp();

  Collectives& collectives_;
  const State& state_;
  std::string target_, staged_;
  std::string user_;                // rank 0
  std::optional<Staging> staging_;  // rank 0
  Manifest manifest_;               // id, step, streams on every rank; the rest on rank 0
  std::vector<Stretch> stretches_;
  PartHead head_;
  std::unique_ptr<PartSource> source_;
  std::optional<Result<PartEntry>> written_;  // stored by the thread, read after it was joined
  std::atomic<bool> cancelled_{false};
  std::thread thread_;
  bool finished_ = false;
};

}  // namespace peal::zero::checkpoint

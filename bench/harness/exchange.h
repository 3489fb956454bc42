// Small records from every rank to every rank, over the communicator that is being measured and outside of
// what is timed. A record that comes back damaged is an error, so that a fault of the library cannot hide
// itself in the reports; besides, every rank judges its own data by itself.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "bench/harness/arena.h"
#include "bench/harness/gpu.h"
#include "tools/common/error.h"
#include "tools/common/ranks.h"

namespace peal::bench {

[[noreturn]] void throwDamagedRecord(int rank);
// Throws if an operation of the communicator has failed on its stream.
void checkAsync(const tools::RankContext& ranks);

// What it needs on a GPU is made once and kept: freeing GPU memory waits for the whole device, where another
// rank's kernel may wait for this rank's next call.
class RecordExchange {
 public:
  explicit RecordExchange(const tools::RankContext& ranks);

  template <class Record>
  std::vector<Record> gather(const Record& mine) {
    static_assert(std::is_trivially_copyable_v<Record>);
    constexpr uint64_t kMark = 0x70656c6162656e63;
    struct Marked {
      uint64_t mark;
      int64_t rank;
      Record record;
    };
    static_assert(sizeof(Marked) <= kMostBytes);
    const Marked own{kMark, ranks_.rank, mine};
    std::vector<Marked> all(static_cast<size_t>(ranks_.size));
    gatherBytes(&own, all.data(), sizeof(Marked));
    std::vector<Record> records;
    records.reserve(all.size());
    for (int rank = 0; rank < ranks_.size; ++rank) {
      if (all[rank].mark != kMark || all[rank].rank != rank) {
        throwDamagedRecord(rank);
      }
      records.push_back(all[rank].record);
    }
    return records;
  }

 private:
  static constexpr size_t kMostBytes = 1024;  // of a record

  // own: ownBytes bytes; all: as many for each rank.
  void gatherBytes(const void* own, void* all, size_t ownBytes);

  const tools::RankContext& ranks_;
  std::unique_ptr<DeviceStream> stream_;   // on a GPU
  std::unique_ptr<Arena> send_, receive_;  // likewise
};

}  // namespace peal::bench

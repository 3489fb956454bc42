// Small records from every rank to every rank, over the communicator that is being measured and outside of
// what is timed. A record that comes back damaged is an error, so that a fault of the library cannot hide
// itself in the reports; besides, every rank judges its own data by itself.
#pragma once
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tools/common/error.h"
#include "tools/common/ranks.h"

namespace peal::bench {

[[noreturn]] void throwDamagedRecord(int rank);
// Throws if an operation of the communicator has failed on its stream.
void checkAsync(const tools::RankContext& ranks);
// own: ownBytes bytes; all: as many for each rank.
void gatherBytes(const tools::RankContext& ranks, const void* own, void* all, size_t ownBytes);

template <class Record>
std::vector<Record> gatherRecords(const tools::RankContext& ranks, const Record& mine) {
  static_assert(std::is_trivially_copyable_v<Record>);
  constexpr uint64_t kMark = 0x70656c6162656e63;
  struct Marked {
    uint64_t mark;
    int64_t rank;
    Record record;
  };
  const Marked own{kMark, ranks.rank, mine};
  std::vector<Marked> all(static_cast<size_t>(ranks.size));
  gatherBytes(ranks, &own, all.data(), sizeof(Marked));
  std::vector<Record> records;
  records.reserve(all.size());
  for (int rank = 0; rank < ranks.size; ++rank) {
    if (all[rank].mark != kMark || all[rank].rank != rank) {
      throwDamagedRecord(rank);
    }
    records.push_back(all[rank].record);
  }
  return records;
}

}  // namespace peal::bench

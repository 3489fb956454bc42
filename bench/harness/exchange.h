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
  tools::check(pealAllGather(&own, all.data(), sizeof(Marked), pealUint8, ranks.comm, nullptr),
               "pealAllGather of the reports", ranks.comm);
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

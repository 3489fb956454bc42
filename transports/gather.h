// Structs of all ranks through an Exchange. Called by what connects ranks: executors and transports.
#pragma once
#include <cstring>
#include <string>
#include <type_traits>

#include "transports/transport.h"

namespace peal {

// Every rank's struct of that type, in rank order. Collective.
template <class T>
Result<std::vector<T>> gather(Exchange& exchange, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<std::byte> blob(sizeof(T));
  std::memcpy(blob.data(), &mine, sizeof(T));
  Result<std::vector<std::vector<std::byte>>> blobs = exchange.allGather(blob);
  if (!blobs) {
    return blobs.error();
  }
  std::vector<T> all(blobs->size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if ((*blobs)[rank].size() != sizeof(T)) {
      return Error{pealInvalidUsage, "rank " + std::to_string(rank) +
                                         " runs a version of peal that does not fit rank " +
                                         std::to_string(exchange.rank()) + "'s."};
    }
    std::memcpy(&all[rank], (*blobs)[rank].data(), sizeof(T));
  }
  return all;
}

}  // namespace peal

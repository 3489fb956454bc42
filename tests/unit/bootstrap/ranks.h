// Several ranks as threads of the test, and what became of each.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/bootstrap/bootstrap.h"
#include "tests/support/limits.h"

namespace peal::test {

// Runs body(rank) for each rank of [0, size) in a thread of its own and waits for all.
inline void onRanks(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&body, rank] { body(rank); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

struct Joined {
  std::unique_ptr<Rendezvous> rendezvous;  // null: it failed
  Error error{pealSuccess, ""};
};

inline Joined join(const pealUniqueId& id, int rank, int size, int timeoutMs = kFarMs) {
  Result<std::unique_ptr<Rendezvous>> result = joinRendezvous(id, rank, size, Deadline::afterMs(timeoutMs));
  Joined joined;
  if (result) {
    joined.rendezvous = std::move(*result);
  } else {
    joined.error = result.error();
  }
  return joined;
}

}  // namespace peal::test

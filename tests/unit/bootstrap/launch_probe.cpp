// What one rank of a launch does in launch_processes_test: says what it detected, joins, and exchanges with
// the others, as many times as its argument says. Exits with 1 and a sentence if anything fails.
#include <fmt/format.h>

#include <cstdlib>

#include "lib/bootstrap/bootstrap.h"

namespace {

int failed(const peal::Error& error) {
  fmt::print(stderr, "probe failed ({}): {}\n", static_cast<int>(error.code), error.message);
  return 1;
}

// Joins once and checks that rank r's blob says r.
int meet(const peal::Launch& launch) {
  const auto id = peal::launchUniqueId(launch);
  if (!id) {
    return failed(id.error());
  }
  const auto rendezvous = peal::joinRendezvous(*id, launch.rank, launch.size, peal::Deadline::afterMs(15000));
  if (!rendezvous) {
    return failed(rendezvous.error());
  }
  const auto mine = std::vector<std::byte>(3, static_cast<std::byte>(launch.rank));
  const auto all = (*rendezvous)->allGather(mine);
  if (!all) {
    return failed(all.error());
  }
  for (int rank = 0; rank < launch.size; ++rank) {
    if ((*all)[static_cast<size_t>(rank)] != std::vector<std::byte>(3, static_cast<std::byte>(rank))) {
      return failed(
          {pealInternalError, fmt::format("rank {} has a wrong blob of rank {}", launch.rank, rank)});
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto launch = peal::detectLaunch();
  if (!launch) {
    return failed(launch.error());
  }
  const int times = argc > 1 ? std::atoi(argv[1]) : 1;
  for (int i = 0; i < times; ++i) {
    if (const int code = meet(*launch); code != 0) {
      return code;
    }
  }
  fmt::print("met as {} of {} local {} of {} by {}\n", launch->rank, launch->size, launch->localRank,
             launch->localSize, launch->launcher);
  return 0;
}

// What one process does in launch_processes_test. Exits with 1 and a sentence if anything fails.
//   launch_probe meet TIMES    detects its launch; joins and exchanges with the others, TIMES times
//   launch_probe kill RANK     the same once, but RANK kills itself between joining and the exchange
//   launch_probe leave         makes an id, forks a child that only exits, and exits with nobody having come
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "lib/base/config.h"
#include "lib/bootstrap/bootstrap.h"

namespace {

constexpr int kNobody = -1;
bool isForkedChild = false;

int failed(const peal::Error& error) {
  fmt::print(stderr, "probe failed with {}: {}\n", static_cast<int>(error.code), error.message);
  return 1;
}

// Joins once and checks that rank r's blob says r.
int meet(const peal::Launch& launch, int killedRank) {
  const auto& table = peal::configuration();
  if (!table) {
    return failed(table.error());
  }
  const auto id = peal::launchUniqueId(launch);
  if (!id) {
    return failed(id.error());
  }
  const auto deadline = peal::Deadline::afterMs(table->integer(peal::Knob::InitTimeoutMs));
  const auto rendezvous = peal::joinRendezvous(*id, launch.rank, launch.size, deadline);
  if (!rendezvous) {
    return failed(rendezvous.error());
  }
  if (launch.rank == killedRank) {
    kill(getpid(), SIGKILL);
  }
  const auto all = (*rendezvous)->allGather(std::vector<std::byte>(3, static_cast<std::byte>(launch.rank)));
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

int leave() {
  const auto id = peal::createUniqueId();
  if (!id) {
    return failed(id.error());
  }
  const pid_t child = fork();
  if (child == 0) {
    isForkedChild = true;
    std::exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  fmt::print("child left with {}\n", status);
  return 0;
}

}  // namespace

// Asked by the leak sanitizer at exit. It cannot look into the forked child of a process with threads: what
// only a thread of the parent points to is a leak there, and its own locks may be held by one that does not
// exist.
extern "C" int __lsan_is_turned_off();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" int __lsan_is_turned_off() { return isForkedChild ? 1 : 0; }

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "leave") {
    return leave();
  }
  if (argc != 3 || (mode != "meet" && mode != "kill")) {
    fmt::print(stderr, "usage: launch_probe meet TIMES | kill RANK | leave\n");
    return 2;
  }
  const auto launch = peal::detectLaunch();
  if (!launch) {
    return failed(launch.error());
  }
  const int number = std::atoi(argv[2]);
  const int times = mode == "meet" ? number : 1;
  for (int i = 0; i < times; ++i) {
    if (const int code = meet(*launch, mode == "kill" ? number : kNobody); code != 0) {
      return code;
    }
  }
  fmt::print("met as {} of {} local {} of {} by {}\n", launch->rank, launch->size, launch->localRank,
             launch->localSize, launch->launcher);
  return 0;
}

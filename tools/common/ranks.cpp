#include "tools/common/ranks.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tools/common/error.h"

namespace peal::tools {
namespace {

// A communicator for the length of a body. Destroyed if the body returns, aborted if it throws.
class CommHolder {
 public:
  explicit CommHolder(pealComm_t comm) : comm_(comm) {}
  ~CommHolder() {
    if (comm_ != nullptr) {
      pealCommAbort(comm_);
    }
  }
  CommHolder(const CommHolder&) = delete;
  CommHolder& operator=(const CommHolder&) = delete;
  pealComm_t get() const { return comm_; }
  void destroy() {
    const pealComm_t comm = comm_;
    comm_ = nullptr;
    check(pealCommDestroy(comm), "pealCommDestroy");
  }

 private:
  pealComm_t comm_;
};

int runBody(RankContext context, const std::function<int(RankContext&)>& body) {
  CommHolder comm(context.comm);
  check(pealCommCuDevice(context.comm, &context.device), "pealCommCuDevice");
  const int code = body(context);
  comm.destroy();
  return code;
}

pealConfig_t configOf(const RankSetup& setup, const RankContext& context) {
  pealConfig_t config = setup.config;
  if (setup.device) {
    config.device = setup.device(context);
  }
  return config;
}

void joinById(const pealUniqueId& id, const RankSetup& setup, RankContext& context) {
  pealConfig_t config = configOf(setup, context);
  check(pealCommInitRankConfig(&context.comm, context.size, id, context.rank, &config),
        "pealCommInitRankConfig");
}

int runProcesses(const RankOptions& options, const RankSetup& setup,
                 const std::function<int(RankContext&)>& body) {
  const auto child = [&](LocalRank& local) {
    RankContext context{.rank = local.rank(),
                        .size = local.size(),
                        .source = RankSource::Processes,
                        .localRank = local.rank()};
    joinById(local.takeUniqueId(), setup, context);
    return runBody(context, body);
  };
  return runLocalRanks(options.processes, child, {options.graceMs});
}

// All ranks of one process: how their communicators are made, and the first failure of any of them.
class ThreadRanks {
 public:
  ThreadRanks(int size, const RankSetup& setup, const std::function<int(RankContext&)>& body)
      : setup_(setup), body_(body), comms_(size) {}

  int run() {
    if (setup_.threadInit == ThreadInit::Together) {
      initTogether();
    } else {
      check(pealGetUniqueId(&id_), "pealGetUniqueId");
    }
    // Ranks wait for each other: all threads run, or none.
    std::promise<bool> decision;
    const std::shared_future<bool> decided = decision.get_future().share();
    std::vector<std::thread> threads;
    threads.reserve(comms_.size());
    std::string refusal;
    try {
      for (int rank = 0; rank < size(); ++rank) {
        threads.emplace_back([this, rank, decided] {
          if (decided.get()) {
            runOne(rank);
          }
        });
      }
    } catch (const std::system_error& failure) {
      refusal = failure.what();
    }
    decision.set_value(refusal.empty());
    for (std::thread& thread : threads) {
      thread.join();
    }
    if (!refusal.empty()) {
      throw ToolError(
          fmt::format("the thread of rank {} of {} did not start: {}. Ask for fewer ranks, or raise the "
                      "limit on processes (ulimit -u) or on memory (ulimit -v)",
                      threads.size(), size(), refusal));
    }
    return firstCode_.load();
  }

 private:
  int size() const { return static_cast<int>(comms_.size()); }

  // As pealCommInitAll, which takes no configuration: one group of joins.
  void initTogether() {
    check(pealGetUniqueId(&id_), "pealGetUniqueId");
    std::vector<pealConfig_t> configs;
    for (int rank = 0; rank < size(); ++rank) {
      configs.push_back(configOf(setup_, contextOf(rank)));
    }
    check(pealGroupStart(), "pealGroupStart");
    pealResult_t joined = pealSuccess;
    for (int rank = 0; rank < size() && joined == pealSuccess; ++rank) {
      joined = pealCommInitRankConfig(&comms_[rank], size(), id_, rank, &configs[rank]);
    }
    const pealResult_t ended = pealGroupEnd();
    check(joined, "pealCommInitRankConfig");
    check(ended, "pealGroupEnd");
  }

  RankContext contextOf(int rank) const {
    return {.rank = rank,
            .size = size(),
            .source = size() > 1 ? RankSource::Threads : RankSource::Alone,
            .localRank = rank};
  }

  void runOne(int rank) {
    const std::string name = size() > 1 ? fmt::format("rank {}", rank) : "rank 0";
    const int code = guard(name, [&] {
      RankContext context = contextOf(rank);
      context.comm = comms_[rank];
      if (setup_.threadInit == ThreadInit::EachItself) {
        joinById(id_, setup_, context);
      }
      return runBody(context, body_);
    });
    int none = 0;
    firstCode_.compare_exchange_strong(none, code);  // read after join
  }

  const RankSetup& setup_;
  const std::function<int(RankContext&)>& body_;
  std::vector<pealComm_t> comms_;  // [rank]: written by the main thread before the threads
  pealUniqueId id_{};
  std::atomic<int> firstCode_{0};
};

int runLauncher(const pealLaunch_t& launch, const RankSetup& setup,
                const std::function<int(RankContext&)>& body) {
  return guard(fmt::format("rank {}", launch.rank), [&] {
    RankContext context{.rank = launch.rank,
                        .size = launch.size,
                        .source = RankSource::Launcher,
                        .launcher = launch.launcher,
                        .localRank = launch.localRank >= 0 ? launch.localRank : launch.rank};
    pealConfig_t config = configOf(setup, context);
    check(pealCommInitLaunch(&context.comm, &config), "pealCommInitLaunch");
    return runBody(context, body);
  });
}

}  // namespace

RankSource chooseRankSource(const RankOptions& options, int launchSize, const std::string& launcher) {
  if (options.processes != 0 && options.threads > 1) {
    throw UsageError(fmt::format("--ranks {} asks for processes, -t/-g for {} threads: give one of them.",
                                 options.processes, options.threads));
  }
  if (launchSize > 1 && (options.processes != 0 || options.threads > 1)) {
    throw UsageError(fmt::format(
        "the launcher ({}) has started {} ranks, and {} asks for more: leave {} out, or start this program "
        "without a launcher.",
        launcher, launchSize, options.processes != 0 ? fmt::format("--ranks {}", options.processes) : "-t/-g",
        options.processes != 0 ? "--ranks" : "-t and -g"));
  }
  if (launchSize > 1) {
    return RankSource::Launcher;
  }
  if (options.processes != 0) {
    return RankSource::Processes;
  }
  return options.threads > 1 ? RankSource::Threads : RankSource::Alone;
}

void addRanksOption(CLI::App& app, RankOptions& options) {
  app.add_option("--ranks", options.processes, "Ranks as processes of this machine")
      ->check(CLI::Range(1, 4096))
      ->type_name("N")
      ->default_str("1, or the launcher's");
}

int runRanks(const RankOptions& options, const RankSetup& setup,
             const std::function<int(RankContext&)>& body) {
  // Reads the environment and nothing more: the parent of forked ranks stays without threads.
  pealLaunch_t launch{};
  check(pealGetLaunch(&launch), "pealGetLaunch");
  switch (chooseRankSource(options, launch.size, launch.launcher)) {
    case RankSource::Processes:
      return runProcesses(options, setup, body);
    case RankSource::Launcher:
      return runLauncher(launch, setup, body);
    case RankSource::Threads:
    case RankSource::Alone:
      break;
  }
  return ThreadRanks(options.threads, setup, body).run();
}

}  // namespace peal::tools

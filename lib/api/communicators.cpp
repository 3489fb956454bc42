// C entry points: making, asking, splitting and ending communicators.
#include <fmt/format.h>

#include <thread>
#include <vector>

#include "lib/api/api.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/bootstrap/bootstrap.h"
#include "lib/comm/group.h"
#include "lib/comm/together.h"
#include "lib/executor/device_executor.h"

using namespace peal;
using namespace peal::api;

namespace {

Deadline initDeadline() { return Deadline::afterMs(configuration()->integer(Knob::InitTimeoutMs)); }

// Whether communicators can be on this device. `what` names the argument.
Result<void> checkDevice(const char* function, const std::string& what, int device) {
  if (device == PEAL_DEVICE_HOST) {
    return {};
  }
  Error wrong{pealInvalidArgument, fmt::format("{}: {} is {}; ", function, what, device)};
  if (device < 0) {
    wrong.message += fmt::format("it is PEAL_DEVICE_HOST ({}) or a GPU's number.", PEAL_DEVICE_HOST);
    return wrong;
  }
  if (Result<void> usable = peal::checkDevice(device); !usable) {
    return Error{usable.error().code, wrong.message + usable.error().message};
  }
  return {};
}

// Copies `config` over the defaults, field by field. `base`: what undefined fields become.
Result<CommOptions> overlay(const char* function, const pealConfig_t* config, CommOptions base) {
  if (config == nullptr) {
    return base;
  }
  if (config->magic != PEAL_CONFIG_MAGIC || config->size < sizeof(pealConfig_t)) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: config has size {} and magic {:#x}; start from PEAL_CONFIG_INITIALIZER.",
                             function, config->size, config->magic)};
  }
  if (config->device != PEAL_CONFIG_UNDEF_INT) {
    base.device = config->device;
  }
  if (config->deterministic != PEAL_CONFIG_UNDEF_INT) {
    if (config->deterministic != 0 && config->deterministic != 1) {
      return Error{pealInvalidArgument, fmt::format("{}: config.deterministic is {}, not 0 or 1.", function,
                                                    config->deterministic)};
    }
    base.deterministic = config->deterministic == 1;
  }
  if (config->timeoutMs != PEAL_CONFIG_UNDEF_INT) {
    if (config->timeoutMs < 1) {
      return Error{pealInvalidArgument,
                   fmt::format("{}: config.timeoutMs is {}; it is at least 1.", function, config->timeoutMs)};
    }
    base.timeoutMs = config->timeoutMs;
  }
  if (config->commName != nullptr) {
    base.name = config->commName;
  }
  return base;
}

// The device that PEAL_DEVICE_CURRENT and PEAL_DEVICE_AUTO stand for.
Result<int> findDevice(int wish) {
  if (wish == PEAL_DEVICE_CURRENT) {
    return currentDevice();
  }
  Result<int> count = countDevices();
  if (!count) {
    return count.error();
  }
  Result<Launch> launch = detectLaunch();
  if (!launch) {
    return launch.error();
  }
  if (launch->localRank < 0) {
    return Error{
        pealInvalidUsage,
        "nobody says which of its machine's ranks this is. Set PEAL_LOCAL_RANK and PEAL_LOCAL_SIZE, or name "
        "the GPU."};
  }
  return launch->localRank % *count;
}

Result<CommOptions> resolve(const char* function, const pealConfig_t* config, const CommOptions& base) {
  Result<CommOptions> options = overlay(function, config, base);
  if (options) {
    const bool given = config != nullptr && config->device != PEAL_CONFIG_UNDEF_INT;
    const char* const what = given ? "config.device" : "the device (PEAL_DEVICE)";
    if (options->device == PEAL_DEVICE_CURRENT || options->device == PEAL_DEVICE_AUTO) {
      Result<int> found = findDevice(options->device);
      if (!found) {
        return Error{found.error().code, fmt::format("{}: {} is {}; {}", function, what,
                                                     options->device == PEAL_DEVICE_AUTO ? "auto" : "current",
                                                     found.error().message)};
      }
      options->device = *found;
    }
    PEAL_TRY(checkDevice(function, what, options->device));
  }
  return options;
}

Result<CommOptions> defaultOptions() {
  const Result<Configuration>& table = configuration();
  if (!table) {
    return table.error();
  }
  CommOptions defaults;
  defaults.deterministic = table->integer(Knob::Deterministic) != 0;
  defaults.timeoutMs = table->integer(Knob::TimeoutMs);
  defaults.device = static_cast<int>(table->integer(Knob::Device));
  return defaults;
}

Result<CommOptions> resolve(const char* function, const pealConfig_t* config) {
  Result<CommOptions> defaults = defaultOptions();
  return defaults ? resolve(function, config, *defaults) : defaults;
}

pealComm* newHandle(std::shared_ptr<Communicator> comm) {
  auto handle = std::make_unique<pealComm>();
  handle->comm = std::move(comm);
  return handle.release();
}

// The only rank of its communicator has nobody to exchange with.
class Alone : public Exchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Result<std::vector<std::vector<std::byte>>> allGather(const std::vector<std::byte>& mine) override {
    return std::vector<std::vector<std::byte>>{mine};
  }
};

// A misspelt variable would otherwise change nothing and say nothing. Once in a process.
void warnOfUnknownVariables() {
  static const bool warned = [] {
    for (const std::string& sentence : unknownVariables()) {
      log(LogLevel::Warn, sentence);
    }
    return true;
  }();
  (void)warned;
}

Result<std::shared_ptr<Communicator>> join(const pealUniqueId& id, int rank, int size,
                                           const CommOptions& options) {
  if (rank == 0) {  // one voice for all: launchers give every rank the same variables
    warnOfUnknownVariables();
  }
  const Deadline deadline = initDeadline();
  Result<std::unique_ptr<Rendezvous>> rendezvous = joinRendezvous(id, rank, size, deadline);
  if (!rendezvous) {
    return rendezvous.error();
  }
  return Communicator::create(**rendezvous, (*rendezvous)->secret(), options, deadline);
}

Result<void> joinInto(pealComm_t* comm, const pealUniqueId& id, int rank, int size,
                      const CommOptions& options) {
  Result<std::shared_ptr<Communicator>> made = join(id, rank, size, options);
  if (!made) {
    return made.error();
  }
  *comm = newHandle(std::move(*made));
  return {};
}

Result<void> checkRank(const char* function, int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: rank {} of {} ranks; the rank is from 0 to ranks - 1, and there is at least one "
                    "rank.",
                    function, rank, size)};
  }
  return {};
}

// Runs fn now, or at the group's end. A failure inside a group makes the group fail.
template <class F>
pealResult_t init(F&& fn) {
  return guarded([&]() -> Result<void> {
    Result<std::function<Result<void>()>> task = fn();
    Group& group = Group::ofThisThread();
    if (!task) {
      if (group.active()) {
        group.fail(task.error());
      }
      return task.error();
    }
    if (group.active()) {
      group.addInit(std::move(*task));
      return {};
    }
    return (*task)();
  });
}

Result<std::function<Result<void>()>> initTask(const char* function, pealComm_t* comm, int nranks,
                                               const pealUniqueId& id, int rank, const pealConfig_t* config) {
  if (comm == nullptr) {
    return nullArgument(function, "comm");
  }
  PEAL_TRY(checkRank(function, rank, nranks));
  Result<CommOptions> options = resolve(function, config);
  if (!options) {
    return options.error();
  }
  return std::function<Result<void>()>(
      [=, options = *options] { return joinInto(comm, id, rank, nranks, options); });
}

}  // namespace

pealResult_t pealGetUniqueId(pealUniqueId* uniqueId) {
  return guarded([&]() -> Result<void> {
    if (uniqueId == nullptr) {
      return nullArgument("pealGetUniqueId", "uniqueId");
    }
    if (!configuration()) {
      return configuration().error();
    }
    Result<pealUniqueId> id = createUniqueId();
    if (!id) {
      return id.error();
    }
    *uniqueId = *id;
    return {};
  });
}

pealResult_t pealCommInitRank(pealComm_t* comm, int nranks, pealUniqueId commId, int rank) {
  return init([&] { return initTask("pealCommInitRank", comm, nranks, commId, rank, nullptr); });
}

pealResult_t pealCommInitRankConfig(pealComm_t* comm, int nranks, pealUniqueId commId, int rank,
                                    pealConfig_t* config) {
  return init([&] { return initTask("pealCommInitRankConfig", comm, nranks, commId, rank, config); });
}

pealResult_t pealCommInitAll(pealComm_t* comms, int ndev, const int* devlist) {
  return guarded([&]() -> Result<void> {
    if (comms == nullptr) {
      return nullArgument("pealCommInitAll", "comms");
    }
    PEAL_TRY(checkRank("pealCommInitAll", 0, ndev));
    Result<CommOptions> defaults = defaultOptions();
    if (!defaults) {
      return defaults.error();
    }
    std::vector<CommOptions> options(static_cast<size_t>(ndev), *defaults);
    for (int i = 0; i < ndev; ++i) {
      const int device = devlist != nullptr ? devlist[i] : PEAL_DEVICE_HOST;
      PEAL_TRY(checkDevice("pealCommInitAll", fmt::format("devlist[{}]", i), device));
      options[static_cast<size_t>(i)].device = device;
    }
    Result<pealUniqueId> id = createUniqueId();
    if (!id) {
      return id.error();
    }
    std::vector<pealComm_t> made(static_cast<size_t>(ndev), nullptr);
    std::vector<std::function<Result<void>()>> tasks;
    for (int rank = 0; rank < ndev; ++rank) {
      const auto index = static_cast<size_t>(rank);
      tasks.emplace_back(
          [&, rank, index] { return joinInto(&made[index], *id, rank, ndev, options[index]); });
    }
    if (Result<void> joined = runTogether(tasks); !joined) {
      for (pealComm_t comm : made) {
        delete comm;
      }
      return joined;
    }
    std::copy(made.begin(), made.end(), comms);
    return {};
  });
}

pealResult_t pealGetLaunch(pealLaunch_t* launch) {
  return guarded([&]() -> Result<void> {
    if (launch == nullptr) {
      return nullArgument("pealGetLaunch", "launch");
    }
    Result<Launch> found = detectLaunch();
    if (!found) {
      return found.error();
    }
    thread_local std::string launcher;
    launcher = found->launcher;
    *launch = {found->rank, found->size, found->localRank, found->localSize, launcher.c_str()};
    return {};
  });
}

pealResult_t pealCommInitLaunch(pealComm_t* comm, pealConfig_t* config) {
  return init([&]() -> Result<std::function<Result<void>()>> {
    if (comm == nullptr) {
      return nullArgument("pealCommInitLaunch", "comm");
    }
    Result<CommOptions> options = resolve("pealCommInitLaunch", config);
    if (!options) {
      return options.error();
    }
    Result<Launch> launch = detectLaunch();
    if (!launch) {
      return launch.error();
    }
    return std::function<Result<void>()>([=, launch = *launch, options = *options]() -> Result<void> {
      if (launch.size == 1) {
        Alone alone;
        Result<std::shared_ptr<Communicator>> made = Communicator::create(alone, {}, options, initDeadline());
        if (!made) {
          return made.error();
        }
        *comm = newHandle(std::move(*made));
        return {};
      }
      Result<pealUniqueId> id = launchUniqueId(launch);
      return id ? joinInto(comm, *id, launch.rank, launch.size, options) : Result<void>(id.error());
    });
  });
}

pealResult_t pealCommSplit(pealComm_t comm, int color, int key, pealComm_t* newcomm, pealConfig_t* config) {
  return init([&]() -> Result<std::function<Result<void>()>> {
    PEAL_TRY(checkComm("pealCommSplit", comm));
    if (newcomm == nullptr) {
      return nullArgument("pealCommSplit", "newcomm");
    }
    if (color < 0 && color != PEAL_SPLIT_NOCOLOR) {
      return Error{
          pealInvalidArgument,
          fmt::format("pealCommSplit: color is {}; it is at least 0, or PEAL_SPLIT_NOCOLOR.", color)};
    }
    Result<CommOptions> options = resolve("pealCommSplit", config, comm->comm->options());
    if (!options) {
      return options.error();
    }
    return std::function<Result<void>()>([=, options = *options]() -> Result<void> {
      const CommUse use(*comm);
      Result<std::shared_ptr<Communicator>> made = split(*comm->comm, color, key, options, initDeadline());
      if (!made) {
        return made.error();
      }
      *newcomm = *made != nullptr ? newHandle(std::move(*made)) : nullptr;
      return {};
    });
  });
}

pealResult_t pealCommFinalize(pealComm_t comm) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkComm("pealCommFinalize", comm));
    const CommUse use(*comm);
    return comm->comm->finalize();
  });
}

pealResult_t pealCommDestroy(pealComm_t comm) {
  return guarded([&]() -> Result<void> {
    if (comm == nullptr) {
      return {};
    }
    PEAL_TRY(checkComm("pealCommDestroy", comm));
    PEAL_TRY(comm->comm->checkNoGraphs("pealCommDestroy"));
    Result<void> finalized = comm->comm->finalize();
    comm->magic = 0;
    delete comm;
    return finalized;
  });
}

pealResult_t pealCommAbort(pealComm_t comm) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkComm("pealCommAbort", comm));
    comm->comm->abort();
    fenceAll();
    // They see the flag within one sleep.
    while (comm->users.load(std::memory_order_acquire) > 0 || comm->issuing.load(std::memory_order_acquire)) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    comm->magic = 0;
    delete comm;
    return {};
  });
}

pealResult_t pealCommGetAsyncError(pealComm_t comm, pealResult_t* asyncError) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkComm("pealCommGetAsyncError", comm));
    if (asyncError == nullptr) {
      return nullArgument("pealCommGetAsyncError", "asyncError");
    }
    const CommUse use(*comm);
    *asyncError = comm->comm->asyncError();
    return {};
  });
}

namespace {

template <class T, class F>
pealResult_t query(const char* function, pealComm* comm, T* out, const char* argument, F&& value) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkComm(function, comm));
    if (out == nullptr) {
      return nullArgument(function, argument);
    }
    const CommUse use(*comm);
    const Result<T> answer = value(*comm->comm);
    if (!answer) {
      return answer.error();
    }
    *out = *answer;
    return {};
  });
}

}  // namespace

pealResult_t pealCommCount(const pealComm_t comm, int* count) {
  return query("pealCommCount", comm, count, "count", [](Communicator& c) { return c.size(); });
}

pealResult_t pealCommCuDevice(const pealComm_t comm, int* device) {
  return query("pealCommCuDevice", comm, device, "device", [](Communicator& c) { return c.device(); });
}

pealResult_t pealCommUserRank(const pealComm_t comm, int* rank) {
  return query("pealCommUserRank", comm, rank, "rank", [](Communicator& c) { return c.rank(); });
}

pealResult_t pealCommForceAlgorithm(pealComm_t comm, const char* algorithm) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkComm("pealCommForceAlgorithm", comm));
    if (Group::ofThisThread().active()) {
      return Error{
          pealInvalidUsage,
          "pealCommForceAlgorithm: not between pealGroupStart and pealGroupEnd, where calls are issued "
          "at the end. Call it before the group."};
    }
    const CommUse use(*comm);
    return comm->comm->forceAlgorithm(algorithm);
  });
}

pealResult_t pealCommGetStats(const pealComm_t comm, pealCommStats_t* stats) {
  return query("pealCommGetStats", comm, stats, "stats", [](Communicator& c) { return c.stats(); });
}

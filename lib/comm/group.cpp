#include "lib/comm/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "lib/comm/together.h"

namespace peal {
void enqueue(const std::shared_ptr<HostStream>& stream, std::shared_ptr<Communicator> comm,
             Communicator::Prepared prepared) {
  auto held = std::make_shared<Communicator::Prepared>(std::move(prepared));
  stream->enqueue([comm = std::move(comm), held] { return comm->run(*held); });
}

namespace {

// Where the thread's group is, once it has one: every call asks, and this costs no call to find out.
[[gnu::tls_model("initial-exec")]] constinit thread_local Group* knownGroup = nullptr;

}  // namespace

Group& Group::ofThisThread() {
  if (knownGroup == nullptr) [[unlikely]] {
    thread_local Group group;
    knownGroup = &group;
  }
  return *knownGroup;
}

Group::Lane& Group::lane(const std::shared_ptr<Communicator>& comm, const StreamRef& stream) {
  for (Lane& lane : lanes_) {
    if (lane.comm != comm) {
      continue;
    }
    if (lane.stream == stream) {
      return lane;
    }
    fail(
        {pealInvalidUsage,
         fmt::format("{}: the group has calls on two streams. A group's calls of one communicator are issued "
                     "together: put them on one stream, or make a group for each stream.",
                     comm->name())});
  }
  spare_.clear();
  return lanes_.emplace_back(Lane{comm, stream, std::move(spare_), {}});
}

void Group::add(const std::shared_ptr<Communicator>& comm, const StreamRef& stream, CollectiveCall call) {
  lane(comm, stream).collectives.push_back(std::move(call));
}

void Group::add(const std::shared_ptr<Communicator>& comm, const StreamRef& stream,
                const PointToPoint& call) {
  lane(comm, stream).pointToPoint.push_back(call);
}

void Group::addInit(std::function<Result<void>()> init) { inits_.push_back(std::move(init)); }

void Group::fail(const Error& error) {
  if (!error_) {
    error_ = error;
  }
}

// Takes all places in the order on the calling thread, before anything runs.
Result<void> Group::issue(Lane& lane, std::vector<Communicator::Prepared>& prepared) {
  const auto keep = [&](Result<Communicator::Prepared> made) -> Result<void> {
    if (!made) {
      return made.error();
    }
    prepared.push_back(std::move(*made));
    return {};
  };
  if (!lane.pointToPoint.empty()) {
    PEAL_TRY(keep(lane.comm->prepare(std::move(lane.pointToPoint))));
  }
  for (const CollectiveCall& call : lane.collectives) {
    PEAL_TRY(keep(lane.comm->prepare(call)));
  }
  return {};
}

namespace {

// What has its place must run even after an error, or the places behind it never come up.
Result<void> runInOrder(Communicator& comm, std::vector<Communicator::Prepared>& prepared) {
  Result<void> result;
  for (Communicator::Prepared& one : prepared) {
    if (Result<void> ran = comm.run(one); !ran && result) {
      result = ran;
    }
  }
  return result;
}

}  // namespace

// The calls of one communicator on host memory, on the thread that made them.
Result<void> Group::runAlone(Lane& lane) {
  if (lane.collectives.empty()) {
    return lane.comm->runNow(lane.pointToPoint);
  }
  std::vector<Communicator::Prepared> prepared;
  const Result<void> issued = issue(lane, prepared);
  const Result<void> ran = runInOrder(*lane.comm, prepared);
  return issued ? ran : issued;
}

Result<void> Group::issueOnHost(std::vector<Lane>& lanes) {
  std::vector<std::function<Result<void>()>> tasks;
  std::optional<Error> first;
  for (Lane& lane : lanes) {
    auto prepared = std::make_shared<std::vector<Communicator::Prepared>>();
    if (Result<void> issued = issue(lane, *prepared); !issued && !first) {
      first = issued.error();
    }
    const auto runAll = [comm = lane.comm, prepared]() { return runInOrder(*comm, *prepared); };
    if (lane.stream.host != nullptr) {
      lane.stream.host->enqueue(runAll);
    } else if (!prepared->empty()) {
      tasks.push_back(runAll);
    }
  }
  if (!tasks.empty()) {
    if (Result<void> ran = runTogether(tasks); !ran && !first) {
      first = ran.error();
    }
  }
  return first ? Result<void>(*first) : Result<void>();
}

// Ranks of one communicator follow each other, so that no other communicator's launch comes between them: it
// would wait for the first of them and be waited for by the next. If several are on one device they fork and
// join, because the streams that the caller gave them may wait for each other.
Result<void> Group::issueOnDevices(std::vector<Lane>& lanes) {
  std::vector<Lane*> order;
  for (Lane& lane : lanes) {
    auto behind = std::find_if(order.rbegin(), order.rend(), [&](const Lane* other) {
      return other->comm->number() == lane.comm->number();
    });
    order.insert(behind == order.rend() ? order.end() : behind.base(), &lane);
  }
  const auto sharesDevice = [&](const Lane& lane) {
    return std::any_of(lanes.begin(), lanes.end(), [&](const Lane& other) {
      return other.comm != lane.comm && other.comm->number() == lane.comm->number() &&
             other.comm->device() == lane.comm->device();
    });
  };
  std::optional<Error> first;
  const auto keep = [&](const Result<void>& result) {
    if (!result && !first) {
      first = result.error();
    }
    return static_cast<bool>(result);
  };
  std::vector<Lane*> forked;
  for (Lane* lane : order) {
    if (sharesDevice(*lane) && keep(lane->comm->forkOnDevice(lane->stream.cuda))) {
      forked.push_back(lane);
    }
  }
  for (Lane* lane : order) {
    if (!lane->pointToPoint.empty()) {
      keep(lane->comm->issueOnDevice(std::move(lane->pointToPoint), lane->stream.cuda));
    }
    for (const CollectiveCall& call : lane->collectives) {
      keep(lane->comm->issueOnDevice(call, lane->stream.cuda));
    }
  }
  for (Lane* lane : forked) {
    keep(lane->comm->joinOnDevice(lane->stream.cuda));
  }
  return first ? Result<void>(*first) : Result<void>();
}

Result<void> Group::end() {
  if (depth_ == 0) {
    return Error{pealInvalidUsage, "pealGroupEnd without a pealGroupStart on this thread."};
  }
  if (--depth_ > 0) {
    return {};
  }
  if (lanes_.size() == 1 && inits_.empty() && !error_ && lanes_.front().stream == StreamRef{} &&
      !lanes_.front().comm->onDevice()) {
    Lane lane = std::move(lanes_.front());
    lanes_.clear();
    Result<void> ran = runAlone(lane);
    spare_ = std::move(lane.pointToPoint);
    return ran;
  }
  std::vector<Lane> lanes = std::move(lanes_);
  std::vector<std::function<Result<void>()>> inits = std::move(inits_);
  const std::optional<Error> error = std::move(error_);
  lanes_.clear();
  inits_.clear();
  error_.reset();
  if (error) {
    return Error{error->code,
                 "nothing of this group was issued, since a call inside it failed: " + error->message};
  }
  if (!inits.empty()) {
    PEAL_TRY(runTogether(inits));
  }
  const auto host = std::stable_partition(lanes.begin(), lanes.end(),
                                          [](const Lane& lane) { return lane.comm->onDevice(); });
  std::vector<Lane> onHost(std::make_move_iterator(host), std::make_move_iterator(lanes.end()));
  lanes.erase(host, lanes.end());
  // Devices first: host work on the NULL stream blocks.
  Result<void> devices = issueOnDevices(lanes);
  Result<void> hosts = issueOnHost(onHost);
  return devices ? hosts : devices;
}

}  // namespace peal

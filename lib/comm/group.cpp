#include "lib/comm/group.h"

#include "lib/comm/together.h"

namespace peal {
void enqueue(const std::shared_ptr<HostStream>& stream, std::shared_ptr<Communicator> comm,
             Communicator::Prepared prepared) {
  auto held = std::make_shared<Communicator::Prepared>(std::move(prepared));
  stream->enqueue([comm = std::move(comm), held] { return comm->run(*held); });
}

Group& Group::ofThisThread() {
  thread_local Group group;
  return group;
}

Group::Lane& Group::lane(const std::shared_ptr<Communicator>& comm,
                         const std::shared_ptr<HostStream>& stream) {
  for (Lane& lane : lanes_) {
    if (lane.comm == comm && lane.stream == stream) {
      return lane;
    }
  }
  return lanes_.emplace_back(Lane{comm, stream, {}, {}});
}

void Group::add(std::shared_ptr<Communicator> comm, std::shared_ptr<HostStream> stream, CollectiveCall call) {
  lane(comm, stream).collectives.push_back(std::move(call));
}

void Group::add(std::shared_ptr<Communicator> comm, std::shared_ptr<HostStream> stream, PointToPoint call) {
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

Result<void> Group::end() {
  if (depth_ == 0) {
    return Error{pealInvalidUsage, "pealGroupEnd without a pealGroupStart on this thread."};
  }
  if (--depth_ > 0) {
    return {};
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
  std::vector<std::function<Result<void>()>> tasks;
  std::optional<Error> first;
  for (Lane& lane : lanes) {
    auto prepared = std::make_shared<std::vector<Communicator::Prepared>>();
    if (Result<void> issued = issue(lane, *prepared); !issued && !first) {
      first = issued.error();
    }
    // What has its place must run even after an error, or the places behind it never come up.
    const auto runAll = [comm = lane.comm, prepared]() -> Result<void> {
      Result<void> result;
      for (Communicator::Prepared& one : *prepared) {
        if (Result<void> ran = comm->run(one); !ran && result) {
          result = ran;
        }
      }
      return result;
    };
    if (lane.stream != nullptr) {
      lane.stream->enqueue(runAll);
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

}  // namespace peal

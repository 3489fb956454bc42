// Groups: calls that are issued together. One per thread; driven by the C API only.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/executor/host/stream.h"

namespace peal {

// Where a call runs: on a host stream, or on a GPU on a CUDA stream. Neither: the NULL stream.
struct StreamRef {
  std::shared_ptr<HostStream> host;
  void* cuda = nullptr;
  bool operator==(const StreamRef&) const = default;
};

class Group {
 public:
  static Group& ofThisThread();

  bool active() const { return depth_ > 0; }
  void start() { ++depth_; }
  // At the outermost end issues everything and waits for host work on the null stream. An error that add()
  // callers met inside the group (fail) means that nothing is issued.
  Result<void> end();

  void add(const std::shared_ptr<Communicator>& comm, const StreamRef& stream, CollectiveCall call);
  void add(const std::shared_ptr<Communicator>& comm, const StreamRef& stream, const PointToPoint& call);
  // Making communicators: each runs on a thread of its own, since each waits for the others.
  void addInit(std::function<Result<void>()> init);
  void fail(const Error& error);

 private:
  // The calls of one communicator on one stream: sends and receives first, all together, then collectives.
  struct Lane {
    std::shared_ptr<Communicator> comm;
    StreamRef stream;
    std::vector<PointToPoint> pointToPoint;
    std::vector<CollectiveCall> collectives;
  };
  Lane& lane(const std::shared_ptr<Communicator>& comm, const StreamRef& stream);
  static Result<void> issue(Lane& lane, std::vector<Communicator::Prepared>& prepared);
  static Result<void> runAlone(Lane& lane);
  static Result<void> issueOnHost(std::vector<Lane>& lanes);
  static Result<void> issueOnDevices(std::vector<Lane>& lanes);

  int depth_ = 0;
  std::vector<Lane> lanes_;
  std::vector<PointToPoint> spare_;  // memory of an earlier group's list
  std::vector<std::function<Result<void>()>> inits_;
  std::optional<Error> error_;
};

// Puts one issued operation on a stream.
void enqueue(const std::shared_ptr<HostStream>& stream, std::shared_ptr<Communicator> comm,
             Communicator::Prepared prepared);

}  // namespace peal

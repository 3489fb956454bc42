#include "bench/harness/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "bench/harness/exchange.h"
#include "tools/common/error.h"

namespace peal::bench {
namespace {

struct Sent {
  uint64_t bytes = 0, messages = 0;
};

// Barriers are the harness's own.
Sent sentSoFar(pealComm_t comm) {
  pealCommStats_t stats{};
  tools::check(pealCommGetStats(comm, &stats), "pealCommGetStats", comm);
  Sent sent;
  for (int kind = 0; kind < pealNumStats; ++kind) {
    if (kind != pealStatBarrier) {
      sent.bytes += stats.bytesSent[kind];
      sent.messages += stats.messages[kind];
    }
  }
  return sent;
}

pealRedOp_t builtIn(Combine combine) {
  switch (combine) {
    case Combine::Prod:
      return pealProd;
    case Combine::Max:
      return pealMax;
    case Combine::Min:
      return pealMin;
    case Combine::Avg:
      return pealAvg;
    default:
      return pealSum;
  }
}

}  // namespace

class Measurer::Reduction {
 public:
  Reduction(const Case& what, const Values& values, const tools::RankContext& ranks)
      : comm_(ranks.comm), op_(builtIn(what.combine)) {
    if (what.combine == Combine::MulSum) {
      auto scalar = values.scalar(ranks.rank);
      tools::check(
          pealRedOpCreatePreMulSum(&op_, scalar.data(), what.type, pealScalarHostImmediate, ranks.comm),
          "pealRedOpCreatePreMulSum", ranks.comm);
      created_ = true;
    }
  }
  ~Reduction() {
    if (created_) {
      pealRedOpDestroy(op_, comm_);
    }
  }
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;
  pealRedOp_t op() const { return op_; }

 private:
  pealComm_t comm_;
  pealRedOp_t op_;
  bool created_ = false;
};

uint64_t largestBufferBytes(const Options& options, const Collective& collective, int ranks) {
  uint64_t largest = 0;
  for (const pealDataType_t type : options.types) {
    const size_t elementBytes = typeInfo(type).bytes;
    const Extents extents = collective.extents(options.maxBytes / elementBytes, elementBytes, ranks);
    largest = std::max<uint64_t>(largest, std::max(extents.send, extents.receive) * elementBytes);
  }
  return largest;
}

Measurer::Measurer(const Options& options, const Collective& collective, const tools::RankContext& ranks)
    : options_(options),
      collective_(collective),
      ranks_(ranks),
      capacityBytes_(largestBufferBytes(options, collective, ranks.size)) {
  const Placement placement = options.registered ? Placement::Registered : Placement::Plain;
  const size_t mostShiftBytes = static_cast<size_t>(options.unalign) * sizeof(double);  // of the widest type
  const bool onDevice = ranks.device != PEAL_DEVICE_HOST;
  if (onDevice) {
    useDevice(ranks.device);
    deviceStream_ = std::make_unique<DeviceStream>();
    stream_ = deviceStream_->handle();
  }
  send_ = std::make_unique<Arena>(capacityBytes_, mostShiftBytes, placement, ranks.comm, ranks.device);
  receive_ = std::make_unique<Arena>(capacityBytes_, mostShiftBytes, placement, ranks.comm, ranks.device);
  if (options.hostStream && !onDevice) {
    tools::check(pealStreamCreate(&stream_), "pealStreamCreate");
  }
}

Measurer::~Measurer() {
  if (deviceStream_ == nullptr) {
    pealStreamDestroy(stream_);
  }
}

Extents Measurer::extents(const Case& what) const {
  const size_t elementBytes = typeInfo(what.type).bytes;
  return collective_.extents(what.sizeBytes / elementBytes, elementBytes, ranks_.size);
}

Call Measurer::makeCall(const Case& what, const Extents& extents, pealRedOp_t op) const {
  return {extents.parameter, what.type, op, what.root, ranks_.rank, ranks_.size};
}

void Measurer::shiftBuffers(const Case& what) {
  const size_t shiftBytes = static_cast<size_t>(options_.unalign) * typeInfo(what.type).bytes;
  send_->shift(shiftBytes);
  receive_->shift(shiftBytes);
}

void Measurer::wait() {
  if (deviceStream_ != nullptr) {
    deviceStream_->synchronize();
    checkAsync(ranks_);
  } else if (stream_ != nullptr) {
    tools::check(pealStreamSynchronize(stream_), "pealStreamSynchronize", ranks_.comm);
  }
}

void Measurer::barrier() {
  tools::check(pealBarrier(ranks_.comm, deviceStream_ != nullptr ? stream_ : nullptr), "pealBarrier",
               ranks_.comm);
  if (deviceStream_ != nullptr) {
    wait();
  }
}

double Measurer::now() const {
  timespec time{};
  clock_gettime(options_.reportCpuTime ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void Measurer::runOnce(const Verifier& buffers, const Call& call, const Extents& extents) {
  tools::check(collective_.run(buffers.sendPointer(call, extents), buffers.receivePointer(call, extents),
                               call, ranks_.comm, stream_),
               collective_.program, ranks_.comm);
}

// Seconds of the whole loop on this rank, from the common start to this rank's end.
double Measurer::timeCalls(const Verifier& buffers, const Call& call, const Extents& extents) {
  const Blocking blocking = options_.blocking;
  const bool waitsInside = blocking == Blocking::EachCall || blocking == Blocking::EachCallAndBarrier;
  const bool grouped = options_.aggregated > 1 && !waitsInside;
  barrier();
  double total = 0;
  double start = now();
  for (int iteration = 0; iteration < options_.iterations; ++iteration) {
    if (grouped) {
      tools::check(pealGroupStart(), "pealGroupStart");
    }
    for (int inner = 0; inner < options_.aggregated; ++inner) {
      runOnce(buffers, call, extents);
      if (waitsInside) {
        wait();
      }
      if (blocking == Blocking::EachCallAndBarrier) {
        barrier();
      }
    }
    if (grouped) {
      tools::check(pealGroupEnd(), "pealGroupEnd", ranks_.comm);
    }
    if (blocking == Blocking::EachIteration) {
      wait();
      total += now() - start;
      barrier();
      start = now();
    }
  }
  wait();
  return total + (blocking == Blocking::EachIteration ? 0 : now() - start);
}

// Seconds of all launches of a graph of the iterations. It is made, and launched once, before the clock
// starts.
double Measurer::timeGraph(const Verifier& buffers, const Call& call, const Extents& extents) {
  DeviceGraph graph(*deviceStream_, [&] {
    for (int i = 0; i < options_.iterations * options_.aggregated; ++i) {
      runOnce(buffers, call, extents);
    }
  });
  graph.launch(*deviceStream_);
  wait();
  barrier();
  const double start = now();
  for (int launch = 0; launch < options_.graphLaunches; ++launch) {
    graph.launch(*deviceStream_);
  }
  wait();
  return now() - start;
}

void Measurer::verify(const Case& what, Place place, Verifier& buffers, const Call& call,
                      const Extents& extents, RankReport& report) {
  for (int repetition = 0; repetition < options_.checks; ++repetition) {
    const Values values = nextValues(what);
    buffers.prepare(call, extents, values);
    runOnce(buffers, call, extents);
    wait();
    const Findings findings = buffers.check(call, extents, values);
    report.wrongElements += findings.wrongElements;
    report.strayBytes += findings.strayBytes;
    if (!findings.first.empty()) {
      fmt::print(stderr, "{}: rank {}, {} bytes of {} {}: {} wrong elements, {} stray bytes; {}.\n",
                 collective_.program, ranks_.rank, what.sizeBytes, typeInfo(what.type).name,
                 place == Place::Out ? "out of place" : "in place", findings.wrongElements,
                 findings.strayBytes, findings.first);
    }
  }
}

void Measurer::warmUp(const Case& what) {
  shiftBuffers(what);
  const Extents need = extents(what);
  const Values values = nextValues(what);
  const Reduction reduction(what, values, ranks_);
  const Place place = options_.places == Places::InPlaceOnly ? Place::In : Place::Out;
  Verifier buffers(collective_, *send_, *receive_, place);
  const Call call = makeCall(what, need, reduction.op());
  buffers.prepare(call, need, values);
  for (int iteration = 0; iteration < options_.warmups; ++iteration) {
    runOnce(buffers, call, need);
  }
  wait();
}

RankReport Measurer::measure(const Case& what, Place place) {
  shiftBuffers(what);
  const Extents need = extents(what);
  const Values values = nextValues(what);
  const Reduction reduction(what, values, ranks_);
  Verifier buffers(collective_, *send_, *receive_, place);
  const Call call = makeCall(what, need, reduction.op());
  buffers.prepare(call, need, values);

  RankReport report;
  const double calls = static_cast<double>(options_.iterations) * options_.aggregated;
  const Sent before = sentSoFar(ranks_.comm);
  report.secondsPerCall = options_.graphLaunches > 0
                              ? timeGraph(buffers, call, need) / (calls * options_.graphLaunches)
                              : timeCalls(buffers, call, need) / calls;
  const Sent after = sentSoFar(ranks_.comm);
  report.sentBytesPerCall = static_cast<double>(after.bytes - before.bytes) / calls;
  report.messagesPerCall = static_cast<double>(after.messages - before.messages) / calls;
  verify(what, place, buffers, call, need, report);
  return report;
}

}  // namespace peal::bench

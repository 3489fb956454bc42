// One case (operation, type, reduction, root, size, in place or not) on one rank: the timed loop, and the
// verified calls after it.
#pragma once
#include <cstdint>
#include <memory>

#include "bench/harness/arena.h"
#include "bench/harness/collective.h"
#include "bench/harness/gpu.h"
#include "bench/harness/options.h"
#include "bench/harness/verify.h"

namespace peal::bench {

// What this rank saw. Trivially copyable: goes through RecordExchange.
struct RankReport {
  double secondsPerCall = 0;
  double sentBytesPerCall = 0, messagesPerCall = 0;
  uint64_t wrongElements = 0, strayBytes = 0;
};

class Measurer {
 public:
  Measurer(const Options& options, const Collective& collective, const tools::RankContext& ranks);
  ~Measurer();
  Measurer(const Measurer&) = delete;
  Measurer& operator=(const Measurer&) = delete;

  struct Case {
    Combine combine;
    pealDataType_t type;
    int root;
    uint64_t sizeBytes;
  };

  Extents extents(const Case& what) const;
  void warmUp(const Case& what);
  RankReport measure(const Case& what, Place place);
  uint64_t bufferBytes() const { return 2 * capacityBytes_; }

 private:
  class Reduction;  // a pealRedOp_t for the length of a measurement

  Call makeCall(const Case& what, const Extents& extents, pealRedOp_t op) const;
  void shiftBuffers(const Case& what);
  void runOnce(const Verifier& buffers, const Call& call, const Extents& extents);
  void wait();
  void barrier();
  double now() const;
  double timeCalls(const Verifier& buffers, const Call& call, const Extents& extents);
  double timeGraph(const Verifier& buffers, const Call& call, const Extents& extents);
  void verify(const Case& what, Place place, Verifier& buffers, const Call& call, const Extents& extents,
              RankReport& report);
  Values nextValues(const Case& what) { return {what.type, what.combine, ranks_.size, ++repetition_}; }

  const Options& options_;
  const Collective& collective_;
  const tools::RankContext& ranks_;
  pealStream_t stream_ = nullptr;
  std::unique_ptr<DeviceStream> deviceStream_;  // on a GPU: what stream_ is then
  uint64_t capacityBytes_ = 0;
  std::unique_ptr<Arena> send_, receive_;
  uint64_t repetition_ =
      0;  // goes up in step on all ranks: they all prepare the same cases in the same order
};

// The largest buffer, in bytes, that `options` need for one rank.
uint64_t largestBufferBytes(const Options& options, const Collective& collective, int ranks);

}  // namespace peal::bench

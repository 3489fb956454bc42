// What a rank did when: spans of the model's passes and units and of the engine's collectives and waits, and
// the file of all ranks' spans that Chrome's and Perfetto's viewers read.
//
// Called by the trainer and by its view of the engine, on the rank's thread. Off, it costs a branch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "peal/zero.hpp"
#include "tools/common/ranks.h"
#include "tools/train/options.h"
#include "tools/train/parameters.h"

namespace peal::train {

enum class TraceKind : int32_t {
  Step,        // index: from 1
  MicroBatch,  // index: from 0
  Pass,        // index: a Pass
  Unit,        // index: its number, detail: a Pass
  Update,
  HeldOut,
  Sample,
  Collective,  // index: the bucket or unit, detail: pealZeroAllReduce ...
  Wait,        // likewise
};

struct TraceSpan {
  int64_t beginNs, endNs;  // CLOCK_MONOTONIC of the rank
  uint64_t bytesSent;
  TraceKind kind;
  int32_t detail;
  int64_t index;
};

class Tracer {
 public:
  // Collective if the options ask for a trace: the ranks compare their clocks.
  Tracer(const TrainOptions& options, const tools::RankContext& context);
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Makes the file, empty: throws UsageError if it cannot be made, before hours of work.
  static void checkPath(const std::string& path);

  bool isOn() const { return isOn_; }
  void follow(zero::Engine& engine);
  void add(TraceKind kind, int64_t index, int32_t detail, int64_t beginNs);  // ends now
  // Collective: ends the trace; rank 0 writes the file. Does nothing if the trace has ended.
  void finish(zero::Engine& engine, size_t units);
  static int64_t nowNs();

 private:
  void write(std::vector<std::vector<TraceSpan>>& ranks, size_t units) const;

  const TrainOptions& options_;
  const tools::RankContext& context_;
  bool isOn_;
  std::vector<int64_t> clockOffsets_;  // per rank: what to subtract for rank 0's clock
  int64_t startNs_ = 0;                // on rank 0's clock
  std::vector<TraceSpan> spans_;
};

// A span of this scope's length.
class TraceScope {
 public:
  TraceScope(Tracer& tracer, TraceKind kind, int64_t index = 0)
      : tracer_(tracer), kind_(kind), index_(index), beginNs_(tracer.isOn() ? Tracer::nowNs() : 0) {}
  ~TraceScope() {
    if (beginNs_ != 0) {
      tracer_.add(kind_, index_, 0, beginNs_);
    }
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Tracer& tracer_;
  TraceKind kind_;
  int64_t index_;
  int64_t beginNs_;
};

}  // namespace peal::train

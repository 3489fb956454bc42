#include "tools/train/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <type_traits>
#include <utility>

#include "tools/common/error.h"
#include "tools/train/hash.h"

namespace peal::train {
namespace {

// The viewer's rows of a rank.
constexpr int kModelRow = 1, kCommunicationRow = 2;

// Processes of one boot of one machine share CLOCK_MONOTONIC.
uint64_t bootHash() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  Fnv1a hash;
  hash.add(id.data(), id.size());
  return hash.value();
}

const char* passName(int64_t pass) {
  return pass == static_cast<int64_t>(Pass::Forward) ? "forward" : "backward";
}

std::string unitName(int64_t unit, size_t units) {
  if (unit == 0) {
    return "embeddings";
  }
  return unit + 1 == static_cast<int64_t>(units) ? "final norm" : fmt::format("block {}", unit - 1);
}

std::string collectiveName(const TraceSpan& span, int stage, size_t units) {
  const char* names[] = {"all-reduce", "reduce-scatter", "all-gather", "norm and flags",
                         "start",      "inspect",        "replicas",   "fused step"};
  std::string name = names[span.detail];
  if (span.index < 0) {
    return name;
  }
  return stage == 3 ? fmt::format("{} of {}", name, unitName(span.index, units))
                    : fmt::format("{} of bucket {}", name, span.index);
}

struct Shown {
  std::string name;
  const char* category;
  int row;
};

Shown show(const TraceSpan& span, int stage, size_t units) {
  switch (span.kind) {
    case TraceKind::Step:
      return {fmt::format("step {}", span.index), "step", kModelRow};
    case TraceKind::MicroBatch:
      return {fmt::format("micro-batch {}", span.index), "step", kModelRow};
    case TraceKind::Pass:
      return {passName(span.index), "pass", kModelRow};
    case TraceKind::Unit:
      return {fmt::format("{} {}", passName(span.detail), unitName(span.index, units)), "unit", kModelRow};
    case TraceKind::Update:
      return {"update", "update", kModelRow};
    case TraceKind::HeldOut:
      return {"held-out loss", "evaluation", kModelRow};
    case TraceKind::Sample:
      return {"sample", "evaluation", kModelRow};
    case TraceKind::Wait:
      return {"wait for " + collectiveName(span, stage, units), "wait", kModelRow};
    case TraceKind::Collective:
      break;
  }
  return {collectiveName(span, stage, units), "communication", kCommunicationRow};
}

// What a query can ask for without taking names apart.
std::string arguments(const TraceSpan& span, int stage, size_t units) {
  std::string all = fmt::format("\"bytesSent\":{}", span.bytesSent);
  const bool isOfEngine = span.kind == TraceKind::Collective || span.kind == TraceKind::Wait;
  if (span.kind == TraceKind::Unit || (isOfEngine && span.index >= 0 && stage == 3)) {
    all += fmt::format(",\"unit\":\"{}\"", unitName(span.index, units));
  } else if (isOfEngine && span.index >= 0) {
    all += fmt::format(",\"bucket\":{}", span.index);
  }
  return all;
}

struct CloseFile {
  void operator()(FILE* file) const { fclose(file); }
};
using Output = std::unique_ptr<FILE, CloseFile>;

}  // namespace

int64_t Tracer::nowNs() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Tracer::Tracer(const TrainOptions& options, const tools::RankContext& context)
    : options_(options), context_(context), isOn_(!options.tracePath.empty()) {
  if (!isOn_) {
    return;
  }
  struct Reading {
    uint64_t boot;
    int64_t nowNs;
  };
  std::vector<Reading> all(static_cast<size_t>(context.size));
  // The first brings the ranks together, so that the second finds their clocks read at about the same time.
  for (int i = 0; i < 2; ++i) {
    const Reading mine{bootHash(), nowNs()};
    tools::check(pealAllGather(&mine, all.data(), 2, pealUint64, context.comm, nullptr), "pealAllGather",
                 context.comm);
  }
  for (const Reading& reading : all) {
    clockOffsets_.push_back(reading.boot == all[0].boot ? 0 : reading.nowNs - all[0].nowNs);
  }
  startNs_ = all[0].nowNs;
}

void Tracer::checkPath(const std::string& path) {
  if (!Output(fopen(path.c_str(), "we"))) {
    throw tools::UsageError(fmt::format("cannot write the trace '{}': {}", path, std::strerror(errno)));
  }
}

void Tracer::follow(zero::Engine& engine) {
  if (!isOn_) {
    return;
  }
  engine.setTrace(
      [](void* user, const pealZeroSpan_t* span) {
        const auto kind = span->kind == pealZeroSpanWait ? TraceKind::Wait : TraceKind::Collective;
        static_cast<Tracer*>(user)->spans_.push_back(
            {span->beginNs, span->endNs, span->bytesSent, kind, span->counter, span->index});
      },
      this);
}

void Tracer::add(TraceKind kind, int64_t index, int32_t detail, int64_t beginNs) {
  if (isOn_) {
    spans_.push_back({beginNs, nowNs(), 0, kind, detail, index});
  }
}

void Tracer::finish(zero::Engine& engine, size_t units) {
  if (!isOn_) {
    return;
  }
  engine.setTrace(nullptr, nullptr);
  isOn_ = false;
  static_assert(std::is_trivially_copyable_v<TraceSpan>);
  uint64_t count = spans_.size();
  const auto check = [&](pealResult_t code, const char* what) { tools::check(code, what, context_.comm); };
  if (context_.rank != 0) {
    check(pealSend(&count, 1, pealUint64, 0, context_.comm, nullptr), "pealSend");
    check(pealSend(spans_.data(), count * sizeof(TraceSpan), pealUint8, 0, context_.comm, nullptr),
          "pealSend");
  } else {
    std::vector<std::vector<TraceSpan>> all = {std::move(spans_)};
    for (int peer = 1; peer < context_.size; ++peer) {
      check(pealRecv(&count, 1, pealUint64, peer, context_.comm, nullptr), "pealRecv");
      all.emplace_back(count);
      check(pealRecv(all.back().data(), count * sizeof(TraceSpan), pealUint8, peer, context_.comm, nullptr),
            "pealRecv");
    }
    write(all, units);
  }
  spans_ = {};
}

void Tracer::write(std::vector<std::vector<TraceSpan>>& ranks, size_t units) const {
  const auto refuse = [&] {
    throw tools::ToolError(
        fmt::format("cannot write the trace '{}': {}", options_.tracePath, std::strerror(errno)));
  };
  Output file(fopen(options_.tracePath.c_str(), "we"));
  if (!file) {
    refuse();
  }
  fmt::print(file.get(), "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"ranks\":{},\"stage\":{}}},\n",
             ranks.size(), options_.stage);
  fmt::print(file.get(), "\"traceEvents\":[\n");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto meta = [&](const char* what, int row, const std::string& name) {
      fmt::print(file.get(),
                 "{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"{}\"}}}},\n",
                 what, rank, row, name);
    };
    meta("process_name", 0, fmt::format("rank {}", rank));
    // A GPU computes after the host has queued what is to be computed.
    meta("thread_name", kModelRow, options_.device == ComputeDevice::Cuda ? "model (queueing)" : "model");
    meta("thread_name", kCommunicationRow, "communication");
    // Outer before inner, as some viewers want it.
    std::sort(ranks[rank].begin(), ranks[rank].end(), [](const TraceSpan& a, const TraceSpan& b) {
      return std::pair(a.beginNs, b.endNs) < std::pair(b.beginNs, a.endNs);
    });
    for (const TraceSpan& span : ranks[rank]) {
      const Shown shown = show(span, options_.stage, units);
      fmt::print(
          file.get(),
          "{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"ts\":{:.3f},\"dur\":{:.3f},\"pid\":{},\"tid\":{},"
          "\"args\":{{{}}}}},\n",
          shown.name, shown.category,
          1e-3 * static_cast<double>(span.beginNs - clockOffsets_[rank] - startNs_),
          1e-3 * static_cast<double>(span.endNs - span.beginNs), rank, shown.row,
          arguments(span, options_.stage, units));
    }
  }
  fmt::print(
      file.get(),
      "{{\"name\":\"process_labels\",\"ph\":\"M\",\"pid\":0,\"args\":{{\"labels\":\"peal-train\"}}}}]}}\n");
  if (ferror(file.get()) != 0 || fclose(file.release()) != 0) {
    refuse();
  }
}

}  // namespace peal::train

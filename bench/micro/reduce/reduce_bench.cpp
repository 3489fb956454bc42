// How fast the reduction loops run, per instruction set, on arrays that fit the second-level cache.
// reduce/TYPE/OP/SOURCES/DESTINATIONS/STORE/ISA; bytes_per_second counts every byte read and written.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lib/reduce/dispatch.h"

namespace peal {
namespace {

constexpr size_t kChunkBytes = 65536;  // the default slot

struct Case {
  pealDataType_t type;
  pealRedOp_t kind;
  size_t sourceCount;
  size_t destinationCount;
  Store store;
  Isa isa;

  std::string name() const {
    return fmt::format("reduce/{}/{}/{}/{}/{}/{}", typeName(type), opName(kind), sourceCount,
                       destinationCount, store == Store::Streaming ? "streaming" : "cached", isaName(isa));
  }
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

// Ones, in any type.
Memory makeChunk(pealDataType_t type) {
  Memory chunk(std::aligned_alloc(4096, kChunkBytes));
  const size_t size = elementBytes(type);
  for (size_t at = 0; at < kChunkBytes; at += size) {
    char* element = static_cast<char*>(chunk.get()) + at;
    if (type == pealFloat64) {
      *reinterpret_cast<double*>(element) = 1;
    } else if (type >= pealFloat16) {
      fromFloat(type, 1, element);
    } else {
      std::fill(element, element + size, '\1');
    }
  }
  return chunk;
}

void run(benchmark::State& state, const Case& c) {
  std::vector<Memory> chunks;
  std::vector<const void*> sources;
  for (size_t s = 0; s < c.sourceCount; ++s) {
    chunks.push_back(makeChunk(c.type));
    sources.push_back(chunks.back().get());
  }
  ReduceArgs args{.sources = sources, .count = kChunkBytes / elementBytes(c.type)};
  for (size_t d = 0; d < c.destinationCount; ++d) {
    chunks.push_back(makeChunk(c.type));
    args.destinations[d] = chunks.back().get();
  }
  args.finish = Finish::Yes;
  args.store = c.store;
  ReduceOp op;
  op.kind = c.kind;
  op.ranks = static_cast<int>(c.sourceCount);
  for (auto _ : state) {
    reduceWith(c.isa, c.type, op, args);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kChunkBytes * (c.sourceCount + c.destinationCount));
}

void addCase(const Case& c) {
  if (c.isa <= bestIsa()) {
    benchmark::RegisterBenchmark(c.name().c_str(), [c](benchmark::State& state) { run(state, c); });
  }
}

void addCases() {
  for (const Isa isa : {Isa::Baseline, Isa::Avx2, Isa::Avx512}) {
    for (int type = 0; type < pealNumTypes; ++type) {
      for (int kind = 0; kind < pealNumOps; ++kind) {
        addCase(
            {static_cast<pealDataType_t>(type), static_cast<pealRedOp_t>(kind), 2, 1, Store::Cached, isa});
      }
      addCase({static_cast<pealDataType_t>(type), pealSum, 8, 1, Store::Cached, isa});
      addCase({static_cast<pealDataType_t>(type), pealSum, 2, 2, Store::Cached, isa});
      addCase({static_cast<pealDataType_t>(type), pealSum, 2, 1, Store::Streaming, isa});
    }
    addCase({pealUint8, pealSum, 1, 1, Store::Cached, isa});
    addCase({pealUint8, pealSum, 1, 2, Store::Cached, isa});
  }
}

}  // namespace
}  // namespace peal

int main(int argc, char** argv) {
  peal::addCases();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

#include "lib/reduce/reduce.h"

#include <cstring>

#include "lib/reduce/dispatch.h"
#include "lib/reduce/kernels.h"

namespace peal {

void reduceWith(Isa isa, pealDataType_t type, const ReduceOp& op, const ReduceArgs& args) {
  const bool multiplies = op.preMultiply && args.rawSource >= 0;
  const bool divides = op.kind == pealAvg && args.finish == Finish::Yes;
  KernelArgs kernel{.sources = args.sources.data(),
                    .sourceCount = args.sources.size(),
                    .rawSource = multiplies ? static_cast<size_t>(args.rawSource) : args.sources.size(),
                    .scalar = op.scalar.data(),
                    .destinations = {args.destinations[0], args.destinations[1]},
                    .count = args.count,
                    .divideBy = divides ? op.ranks : 0,
                    .streaming = args.store == Store::Streaming,
                    .secondCached = args.secondCached};
  if (kernel.sourceCount == 1 && !multiplies && !divides) {
    kernel.count *= elementBytes(type);
    kernelsFor(isa).copy(kernel);
    return;
  }
  kernelsFor(isa).reduce(type, op.kind == pealAvg ? pealSum : op.kind, kernel);
}

namespace {

// From kStringMoveLeastBytes to this size memcpy is the processor's string move (glibc, where there is a
// quick one). On AMD's Zen 4 that is many times slower than a loop between places that differ in their line,
// and as fast where they do not (docs/BENCH.md, "Copies", has figures).
constexpr size_t kStringMoveMostBytes = (size_t{1} << 20) - 1;
constexpr uintptr_t kLineBytes = 64;

bool isForMemcpy(const void* to, const void* from, size_t bytes) {
  return bytes < kStringMoveLeastBytes || bytes > kStringMoveMostBytes ||
         (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kLineBytes == 0;
}

}  // namespace

void copyBytesWith(Isa isa, void* to, const void* from, size_t bytes, Store store) {
  if (store == Store::Cached && isForMemcpy(to, from, bytes)) {
    if (bytes != 0 && to != from) {
      std::memcpy(to, from, bytes);
    }
    return;
  }
  kernelsFor(isa).copy({.sources = &from,
                        .sourceCount = 1,
                        .rawSource = 1,
                        .scalar = nullptr,
                        .destinations = {to, nullptr},
                        .count = bytes,
                        .divideBy = 0,
                        .streaming = store == Store::Streaming,
                        .secondCached = false});
}

void reduce(pealDataType_t type, const ReduceOp& op, const ReduceArgs& args) {
  reduceWith(bestIsa(), type, op, args);
}

void copyBytes(void* to, const void* from, size_t bytes, Store store) {
  copyBytesWith(bestIsa(), to, from, bytes, store);
}

}  // namespace peal

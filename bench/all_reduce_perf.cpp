// all_reduce_perf: pealAllReduce.
//
// Bound: every element has n - 1 sums and n - 1 copies to other ranks, 2(n - 1)S in all over n ranks
// (nccl-tests, doc/PERFORMANCE.md).
#include "bench/harness/main.h"

namespace {

using namespace peal::bench;

const Collective kAllReduce{
    .program = "all_reduce_perf",
    .reduces = true,
    .rooted = false,
    .inPlace = true,
    .extents =
        [](size_t count, size_t, int) {
          return Extents{count, count, count, 0, 0};
        },
    .busFactor = [](int ranks) { return 2 * othersShare(ranks); },
    .boundFactor = [](int ranks) { return 2 * othersShare(ranks); },
    .result =
        [](const Call& call) {
          return std::vector<Piece>{{Piece::Source::Reduction, call.count}};
        },
    .run =
        [](const void* send, void* receive, const Call& call, pealComm_t comm, pealStream_t stream) {
          return pealAllReduce(send, receive, call.count, call.type, call.op, comm, stream);
        },
};

}  // namespace

int main(int argc, char** argv) { return benchMain(kAllReduce, argc, argv); }
